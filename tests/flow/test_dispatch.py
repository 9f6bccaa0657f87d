"""The table of stand-ins: who is looked up, who goes first, what happens in place, what is said without a rule."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from checks import Function, untouched
from synflow.errors import SynflowError
from synflow.flow import dispatch as linearization
from synflow.flow import rules
from synflow.flow.dispatch import NoRuleError, active_mode
from synflow.flow.measure import measure
from synflow.flow.passes import PassOptions
from synflow.flow.paths import fewest_weights
from synflow.network.private_copy import open_network

X = torch.zeros(1, 3)
TO_THREE = torch.tensor([[1.0, 2.0, 3.0], [-4.0, 5.0, 6.0], [7.0, -8.0, 9.0]])


def model(function, **parts):
    """A function of the flow (6, 15, 24) that leaves a layer."""
    head = nn.Linear(3, 3, bias=False)
    head.weight.data = TO_THREE.clone()
    return Function(lambda self, x: function(self, self.head(x)), head=head, **parts)


def flow(function, **parts):
    """The total flow of such a function."""
    found = measure(open_network(model(function, **parts), X))
    return found.value * 2.0**found.exponent


@pytest.fixture(autouse=True)
def _own_rules():
    """Rules registered in a test are gone after it."""
    before = dict(linearization._USER_RULES)
    yield
    linearization._USER_RULES.clear()
    linearization._USER_RULES.update(before)


def test_an_unknown_operation_is_named_with_its_module_and_the_line_that_helps():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), Odd()), nn.Linear(4, 2))
    with untouched(net), pytest.raises(NoRuleError) as caught:
        synflow.prune(net, X, compression=2)
    message = str(caught.value)
    assert "'special_bessel_j0'" in message
    assert "module '1.1' (Odd)" in message
    line = next(line.strip() for line in message.splitlines() if "register_rule" in line)
    assert line == "synflow.register_rule('special_bessel_j0', synflow.rules.identity)"
    exec(line, {"synflow": synflow})
    assert sum(int(mask.sum()) for mask in synflow.prune(net, X, compression=2).values()) == 10


def test_an_unknown_operation_of_the_model_itself():
    message = r"'digamma' on a flow, in module '\(the model itself\)' \(Function\)"
    with pytest.raises(NoRuleError, match=message):
        flow(lambda _, x: x.digamma())
    with pytest.raises(NoRuleError, match="'digamma_' on a flow"):
        flow(lambda _, x: x.digamma_())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _, x: x if x.sum() > 1 else x * 2, r"'__bool__'.*decides in Python by(.|\n)*register_rule\('gt'"),
        (lambda _, x: x * x.sum().item(), r"'item'.*decides in Python by values"),
        (lambda _, x: x if (x > 0).any() else x * 2, r"'any'.*decides in Python by values"),
        (lambda _, x: x * x.int(), r"'int'.*positions or counts(.|\n)*dtype=torch\.long"),
        (lambda _, x: x + torch.bucketize(x, torch.zeros(2)), "'bucketize'.*positions or counts"),
        (lambda _, x: x @ torch.linalg.inv(x.T @ x), "'linalg_inv'.*decomposition"),
        (lambda _, x: x.resize_(3), "'resize_'.*changes the memory of a tensor in place; write it with reshape"),
        (lambda _, x: torch.vmap(torch.relu)(x), r"'relu'.*inside of torch\.vmap.*as a loop"),
    ],
)  # fmt: skip
def test_advice_fits_the_operation(function, message):
    with pytest.raises(NoRuleError, match=message):
        flow(function)


def test_the_advice_on_python_branches_works():
    def function(_, x):
        return x if x.sum() > 1 else x * 2

    with pytest.raises(NoRuleError) as caught:
        flow(function)
    line = next(line.strip() for line in str(caught.value).splitlines() if "register_rule" in line)
    exec(line, {"synflow": synflow, "torch": torch})
    assert flow(function) == 45


@pytest.mark.parametrize("spelling", ["digamma", torch.digamma, torch.Tensor.digamma])
def test_a_rule_by_name_or_by_function_serves_every_spelling(spelling):
    synflow.register_rule(spelling, rules.identity)
    assert (
        flow(lambda _, x: x.digamma()) == flow(lambda _, x: torch.digamma(x)) == flow(lambda _, x: x.digamma_()) == 45
    )


def test_an_alias_and_its_operation_share_a_rule():
    synflow.register_rule("__mul__", lambda _function, x, _: x + x)
    assert flow(lambda _, x: x * 5.0) == flow(lambda _, x: x.multiply(5.0)) == flow(lambda _, x: 5.0 * x) == 90


def test_own_rules_go_first_and_are_written_in_torch():
    def doubled(_function, x, *_args, **_kwargs):
        active_mode()
        return x + x

    assert flow(lambda _, x: F.relu(x)) == 45
    synflow.register_rule("relu", doubled)
    assert flow(lambda _, x: F.relu(x)) == flow(lambda _, x: x.relu()) == flow(lambda _, x: x.relu_()) == 90


def test_a_rule_must_be_callable():
    with pytest.raises(SynflowError, match="the rule for 'exp' must be callable"):
        synflow.register_rule("exp", "identity")


def test_rules_serve_only_within_a_pass():
    with pytest.raises(SynflowError, match="no flow pass is under way"):
        active_mode()


def test_operations_without_a_flow_run_as_they_are():
    def function(_, x):
        positions = torch.arange(3).exp().cos().topk(2)[0]
        return x * (positions.sum() * 0 + 2)

    assert flow(function) == 90


def test_questions_about_a_flow_are_answered():
    def function(_, x):
        assert x.shape == (1, 3)
        assert (len(x), x.dim(), x.size(1), x.numel(), x.is_floating_point()) == (1, 2, 3, 3, True)
        assert x.device.type == "cpu"
        assert x.T.shape == (3, 1)
        assert not torch.zeros_like(x).any()
        return x.T + x.new_ones(3, 1)

    assert flow(function) == 48


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda _, x: x.add_(x), 90),
        (lambda _, x: x.add_(1.0), 48),
        (lambda _, x: x.sub_(torch.tensor([1.0, -2.0, 3.0])), 51),
        (lambda _, x: x.mul_(-2.0), 90),
        (lambda _, x: x.div_(2.0), 22.5),
        (lambda _, x: x.neg_(), 45),
        (lambda _, x: x.clamp_(0, 1), 45),
        (lambda _, x: x.masked_fill_(torch.tensor([True, False, False]), float("-inf")), 39),
        (lambda _, x: F.leaky_relu(x, inplace=True), 45),
        (lambda _, x: F.hardswish(x, inplace=True) * 2, 90),
        (lambda _, x: F.dropout(x, inplace=True), 45),
        (lambda _, x: torch.zeros(1, 3).copy_(x), 45),
        (lambda _, x: torch.zeros(1, 3).add_(x), 45),
        (lambda _, x: torch.ones(1, 3).mul_(x), 45),
        (lambda _, x: x.copy_(torch.tensor([[1.0, -1.0, 0.5]])) + 0, 2.5),
    ],
)  # fmt: skip
def test_in_place_operations(function, expected):
    assert flow(function) == expected


def test_an_in_place_operation_changes_the_tensor_that_others_hold():
    def function(_, x):
        y = x + 0.0
        z = y
        y += x
        return z

    assert flow(function) == 90


def put(out, index, value):
    out[index] = value
    return out


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda _, x: put(x.new_zeros(2, 3), 0, x[0]), 45),
        (lambda _, x: put(torch.zeros(2, 3), (slice(None), 1), x[0, 0]), 12),
        (lambda _, x: put(put(torch.zeros(2, 3), 0, x[0]), 1, x[0] * 2), 135),
        (lambda _, x: put(x + 0, (0, 1), 0.0), 30),
        (lambda _, x: put(x + 0, (0, 1), -7.0), 37),
        (lambda _, x: put(x + 0, (0, 1), float("-inf")), 30),
        (lambda _, x: put(x + 0, (0, slice(0, 2)), torch.tensor([1.0, -2.0])), 27),
    ],
)  # fmt: skip
def test_writing_into_a_tensor(function, expected):
    assert flow(function) == expected


def test_constants_already_in_a_tensor_count_with_their_absolute_value():
    big = torch.full((1, 3), 2.0**40)
    out = measure(open_network(model(lambda _, x: put(torch.full((2, 3), -1.0), 0, (x * big)[0])), X))
    assert out.value * 2.0**out.exponent == pytest.approx(45 * 2.0**40)
    small = measure(open_network(model(lambda _, x: put(torch.full((2, 3), -1.0), 0, x[0])), X))
    assert small.value * 2.0**small.exponent == 48
    alone = PassOptions(shifts=False, sources=False)
    follow = measure(open_network(model(lambda _, x: put(torch.full((2, 3), -1.0), 0, x[0])), X), options=alone)
    assert follow.value * 2.0**follow.exponent == 45


def test_a_shallow_and_a_deep_flow_in_one_tensor():
    """The second is 2**200 times the first; both orders of writing give the same."""
    huge = torch.full((3,), 2.0**100)

    def deep(_, x):
        return put(put(torch.zeros(2, 3), 0, x[0]), 1, x[0] * huge * huge)

    def other(_, x):
        return put(put(torch.zeros(2, 3), 1, x[0] * huge * huge), 0, x[0])

    for function in (deep, other):
        found = measure(open_network(model(function), X))
        assert found.log2 == pytest.approx(200 + torch.tensor(45.0).log2().item())


def written(write, start=0.0):
    """A constant into whose first row, held as a view, something is written."""

    def function(_, x):
        out = torch.full((2, 3), start)
        first = out[0]
        write(first, x[0])
        return torch.cat([out, first[None]])

    return function


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (written(lambda row, x: row.copy_(x)), 90),
        (written(lambda row, x: row.add_(x).add_(x)), 180),
        (written(lambda row, x: put(row, 0, x[0])), 12),
        (written(lambda row, x: put(row, 0, x[0]), start=-1.0), 12 + 7),
        (lambda _, x: torch.zeros(2, 3)[0].copy_(x[0]), 45),
    ],
)
def test_writing_into_a_view_of_a_constant_reaches_the_tensor_and_the_view(function, expected):
    assert flow(function) == expected


def test_a_constant_whose_dimensions_lie_in_another_order_can_be_written_into():
    def function(_, x):
        y = torch.zeros(3, 2).t().clone(memory_format=torch.preserve_format)
        assert not y.is_contiguous()
        y[0].copy_(x[0])
        return y

    assert flow(function) == flow(lambda _, x: x[0])


def test_a_view_of_a_constant_with_gaps_is_refused():
    with pytest.raises(SynflowError, match=r"written into a view of a constant tensor.*torch\.cat"):
        flow(lambda _, x: torch.empty_strided((2, 3), (9, 2)).zero_()[0].copy_(x[0]))


def test_writing_into_a_view_of_a_flow_reaches_the_flow():
    def function(_, x):
        y = x + 0.0
        y[:, :2] *= 10.0
        y[0].add_(1.0)
        return y

    assert flow(function) == 6 * 10 + 15 * 10 + 24 + 3


def test_a_flow_that_becomes_infinite_is_reported_with_its_place():
    with pytest.raises(SynflowError, match=r"the flow became .* at the operation 'mul' in module"):
        flow(lambda _, x: x * float("inf"))


@pytest.mark.parametrize(
    "cut",
    [lambda x: x.detach(), lambda x: x.data, lambda x: torch.tensor(1.0) * x.detach_()],
    ids=["detach", "data", "detach_"],
)
def test_a_detached_flow_is_still_followed(cut):
    """What stops gradients in training does not stop flow: weights before it are on the path."""
    net = Function(lambda self, x: self.after(cut(self.before(x))), before=nn.Linear(3, 4), after=nn.Linear(4, 2))
    assert measure(open_network(net, X)).scores["before.weight"].min() > 0
    assert synflow.certify(net, synflow.prune(net, X, compression=10), X).connected


def test_a_frozen_trunk_is_still_followed():
    def forward(self, x):
        with torch.no_grad():
            hidden = self.trunk(x)
        return self.head(hidden)

    net = Function(forward, trunk=nn.Linear(3, 4), head=nn.Linear(4, 2))
    assert measure(open_network(net, X)).scores["trunk.weight"].min() > 0
    assert synflow.certify(net, synflow.prune(net, X, compression=10), X).connected


def test_a_window_takes_a_sum_that_its_exponent_cannot_hold():
    """A slice of a long way, to which a short one is added in place (as in GhostNet), when weights per path count."""

    class Ghost(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))
            self.short, self.head = nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)

        def forward(self, x):
            y = self.c(self.b(self.a(x)))[:, :3]
            y += self.short(x)
            return self.head(y)

    network = open_network(Ghost(), torch.ones(1, 4))
    assert fewest_weights(network) == 2
