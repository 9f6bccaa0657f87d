"""Units that look dead but are not, and units that are: each trap with the pair of cases that tells them apart."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from blocks import Mean, residual
from compact_twins import check, sizes, train_twins, width, without
from synflow.compaction import compact, verify

X = torch.randn(2, 3)
IMAGE = torch.randn(2, 3, 5, 5)


def mlp(*between, bias=True, width=4):
    return nn.Sequential(nn.Linear(3, width, bias), *between, nn.Linear(width, 2))


def silent(model, unit=1, layer="0"):
    """All weights into one unit of a layer are pruned, its bias, if it has one, is zero."""
    module = model.get_submodule(layer)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
    return {f"{layer}.weight": without(model, f"{layer}.weight", 0, [unit])}


def test_a_unit_that_nobody_reads_goes_with_its_bias():
    model = mlp(nn.GELU())
    small = check(model, {"2.weight": without(model, "2.weight", 1, [0, 2])}, X)
    assert sizes(small) == [(2, 3), (2, 2)]
    assert small.compaction.kept["0.bias"] == {0: [1, 3]}


def test_opposite_signs_that_cancel_are_no_zero():
    model = mlp(nn.ReLU(), width=2)
    with torch.no_grad():
        model[0].weight[1] = model[0].weight[0]
        model[0].bias[1] = model[0].bias[0]
        model[2].weight[:, 1] = -model[2].weight[:, 0]
    masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in model.named_parameters()}
    assert sizes(check(model, masks, X)) == [(2, 3), (2, 2)]


@pytest.mark.parametrize(
    ("activation", "bias", "left"),
    [
        (nn.ReLU(), True, 3),  # slope zero at zero: the bias gets no gradient
        (nn.ReLU6(), True, 3),
        (nn.Hardtanh(0, 1), True, 3),
        (nn.Softshrink(), True, 3),
        (nn.GELU(), True, 4),  # zero now, but the bias learns
        (nn.SiLU(), True, 4),
        (nn.Tanh(), True, 4),
        (nn.LeakyReLU(), True, 4),
        (nn.ELU(), True, 4),
        (nn.Hardswish(), True, 4),
        (nn.PReLU(4), True, 4),
        (nn.Identity(), True, 4),
        (nn.GELU(), False, 3),  # nothing to learn
        (nn.SiLU(), False, 3),
        (nn.Tanh(), False, 3),
        (nn.PReLU(4), False, 3),
        (nn.Dropout(0.5), False, 3),
        (nn.Sigmoid(), False, 4),  # one half at zero
        (nn.Softplus(), False, 4),
        (nn.Hardsigmoid(), False, 4),
        (nn.Threshold(-1, 2), False, 3),
        (nn.Threshold(0.5, 2), False, 4),  # two at zero
        (nn.Softmax(-1), False, 4),
    ],
)
def test_a_silent_unit_goes_if_it_stays_silent_in_training(activation, bias, left):
    model = mlp(activation, bias=bias)
    assert width(check(model, silent(model), X)) == left


def test_a_bias_that_is_not_zero_speaks():
    model = mlp(nn.ReLU())
    masks = silent(model)
    nn.init.constant_(model[0].bias, 0.5)
    assert width(check(model, masks, X)) == 4


@pytest.mark.parametrize(
    ("part", "value", "left"),
    [
        ("bias", 0.0, 3),
        ("bias", 0.5, 4),
        ("running_mean", 0.5, 4),
        ("running_var", 3.0, 3),
        ("weight", 0.0, 1),  # no gain, no shift, then ReLU: no channel ever learns
    ],
)
def test_batch_norm_speaks_by_its_shift_or_its_running_mean(part, value, left):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), Mean(2, 3))
    nn.init.constant_(getattr(model[1], part), value)
    small = check(model, silent(model), IMAGE)
    assert width(small) == left
    assert small[1].num_features == left


def test_a_convolution_bias_before_batch_norm_is_seen_in_eval_mode():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), Mean(2, 3))
    masks = silent(model)
    assert width(check(model, masks, IMAGE)) == 3
    nn.init.constant_(model[0].bias, 0.5)
    assert width(check(model, masks, IMAGE)) == 4


def test_a_constant_channel_is_seen_at_the_border_of_a_padded_convolution():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
    masks = silent(model)
    nn.init.constant_(model[0].bias, 1.0)
    assert width(check(model, masks, IMAGE)) == 4


@pytest.mark.parametrize(
    ("affine", "after", "left"), [(True, nn.Identity(), 4), (True, nn.ReLU(), 3), (False, nn.Identity(), 3)]
)
def test_a_shift_inside_a_residual_branch_learns_through_the_sum(affine, after, left):
    branch = [nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4, affine=affine)]
    model = nn.Sequential(nn.Linear(3, 4, bias=False), residual(*branch), after, nn.Linear(4, 2))
    inner = "1." + next(name for name, _ in model[1].named_parameters())
    assert width(check(model, silent(model) | {inner: without(model, inner, 0, [1])}, X)) == left


def test_units_around_residual_blocks_go_together_or_not_at_all():
    model = nn.Sequential(
        nn.Linear(3, 4), residual(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4)), nn.ReLU(), nn.Linear(4, 2)
    )
    names = [name for name, w in model.named_parameters() if w.dim() > 1]
    unread = {names[3]: without(model, names[3], 1, [1])}
    assert width(check(model, unread, X)) == 4  # the block reads it, and others hear of it
    both = unread | {names[1]: without(model, names[1], 1, [1])}
    assert sizes(check(model, both, X)) == [(3, 3), (5, 3), (3, 5), (2, 3)]


def test_units_that_feed_only_each_other_go():
    model = nn.Sequential(
        nn.Linear(3, 4), residual(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4)), nn.ReLU(), nn.Linear(4, 2)
    )
    names = [name for name, w in model.named_parameters() if w.dim() > 1]
    read = without(model, names[1], 1, [1])
    read[2, 1] = True  # unit 2 of the block reads unit 1 of the stream ...
    write = without(model, names[2], 1, [2])
    write[1, 2] = True  # ... and writes to it alone
    masks = {names[1]: read, names[2]: write, names[3]: without(model, names[3], 1, [1])}
    assert sizes(check(model, masks, X)) == [(3, 3), (4, 3), (3, 4), (2, 3)]


@pytest.mark.parametrize(
    ("norm", "left", "reason"),
    [
        (nn.LayerNorm(4), 4, "layer norm"),
        (nn.GroupNorm(2, 4), 4, "group norm"),
        (nn.BatchNorm1d(4), 3, None),
        (nn.RMSNorm(4), 4, "mean runs over it"),
    ],
)
def test_norms_that_mix_channels_keep_them_and_say_so(norm, left, reason):
    model = mlp(norm, nn.ReLU(), bias=False)
    masks = silent(model) | {"3.weight": without(model, "3.weight", 1, [1])}
    small = check(model, masks, X)
    assert width(small) == left
    assert reason is None or any(reason in stay.reason for stay in small.compaction.stayed)


def test_zeros_that_are_not_masked_may_grow():
    model = mlp(nn.GELU())
    with torch.no_grad():
        model[2].weight[:, 1] = 0
    everything = {"2.weight": torch.ones(2, 4, dtype=torch.bool)}
    assert width(check(model, everything, X)) == 4
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0
    assert width(check(model, everything, X)) == 3  # unless nothing on either side gives them a gradient


class Gated(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4, bias), nn.Linear(3, 4, bias), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(F.silu(self.a(x)) * self.b(x))


def test_a_gate_that_is_always_closed_silences_its_unit():
    for bias, left in ((False, 3), (True, 4)):
        for layer in ("a", "b"):
            model = Gated(bias)
            assert width(check(model, silent(model, layer=layer), X), "b") == left
    model = Gated(True)
    assert width(check(model, silent(model, layer="a") | silent(model, layer="b"), X), "b") == 3


def test_a_running_mean_that_is_zero_now_follows_what_it_averages():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.first, self.out = nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            normed = self.norm(x)
            return self.out(self.first(normed) * self.norm.running_mean)

    model = Centred()
    small = compact(model, X, {"out.weight": torch.ones(2, 3, dtype=torch.bool)})
    assert width(small, "first") == 3
    assert not small.compaction.notes


def test_a_buffer_that_is_zero_now_and_is_written_to_wakes_what_it_silences():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 4, bias=False), nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            y = self.out(self.first(x * self.seen).relu())
            self.seen += x.detach().abs().mean(0)
            return y

    model = Counts()
    small = compact(model, X, {"out.weight": torch.ones(2, 4, dtype=torch.bool)})
    assert width(small, "first") == 4
    assert not small.compaction.notes  # the proof was enough
    for _ in range(2):
        expected, got = model(X), small(X)
    torch.testing.assert_close(got, expected)


class PassThrough(torch.autograd.Function):
    """ReLU forward, as if it were the identity backward."""

    @staticmethod
    def forward(ctx, x):
        return x.relu()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_a_gradient_of_ones_own_making_is_found_by_the_check():
    class Straight(nn.Module):
        def forward(self, x):
            return PassThrough.apply(x)

    model = mlp(Straight())
    masks = silent(model)
    small = compact(model, X, masks)
    assert width(small) == 4
    assert "they would come alive in training" in small.compaction.notes[0]
    train_twins(model, small, masks, X)


class Steeper(torch.autograd.Function):
    """The same numbers with twice the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class SteeperLinear(nn.Linear):
    def forward(self, x):
        return Steeper.apply(super().forward(x))


def test_other_gradients_behind_the_same_outputs_are_found_by_the_check():
    plain, steeper = nn.Linear(3, 2).double(), SteeperLinear(3, 2).double()
    steeper.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3).double()
    assert verify.compare(plain, copy.deepcopy(plain), {}, {}, x, training=True) == 0
    assert verify.compare(plain, steeper, {}, {}, x, training=False) == 0
    with pytest.raises(verify.DifferenceError, match="the gradient of weight differs"):
        verify.compare(plain, steeper, {}, {}, x, training=True)


def test_a_table_of_which_the_example_sees_a_part_counts_as_a_whole():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 4, bias=False), nn.Linear(4, 2)
            self.table = nn.Parameter(torch.randn(10, 4))

        def forward(self, x):
            return self.out(self.first(x) + self.table[: x.shape[1]])

    model = Positions()
    table = torch.ones(10, 4, dtype=torch.bool)
    table[:5, 1] = False
    masks = silent(model, layer="first") | {"table": table}
    assert width(check(model, masks, torch.randn(2, 5, 3)), "first") == 4
    table[:, 1] = False
    assert width(check(model, masks, torch.randn(2, 5, 3)), "first") == 3


class Auxiliary(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out, self.helper = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.first(x).relu()
        return (self.out(hidden), self.helper(hidden)) if self.training else self.out(hidden)


def test_what_is_read_only_in_training_stays():
    model = Auxiliary()
    masks = {"out.weight": without(model, "out.weight", 1, [1])}
    assert width(check(model, masks, X), "first") == 4
    masks["helper.weight"] = without(model, "helper.weight", 1, [1])
    assert width(check(model, masks, X), "first") == 3


@pytest.mark.parametrize("largest", [lambda h: h.max(), lambda h: h.max(1, keepdim=True).values, lambda h: h.min()])
def test_the_largest_of_all_units_is_read_from_all(largest):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 4, bias=False), nn.Linear(4, 2)

        def forward(self, x):
            hidden = self.first(x)
            return self.out(hidden.relu()) + largest(hidden)

    model = Scaled()
    small = check(model, {"out.weight": without(model, "out.weight", 1, [1])}, X)
    assert width(small, "first") == 4
    small = check(model, {"first.weight": without(model, "first.weight", 0, [1])}, X)  # a zero may be the largest
    assert width(small, "first") == 4


def test_inputs_and_outputs_keep_their_size():
    model = mlp(nn.ReLU())
    nn.init.zeros_(model[2].bias)
    masks = {"0.weight": without(model, "0.weight", 1, [0]), "2.weight": without(model, "2.weight", 0, [1])}
    small = check(model, masks, X)
    assert small[0].in_features == 3
    assert small[2].out_features == 2


def test_a_layer_that_is_all_dead_keeps_one_unit():
    model = mlp(nn.ReLU())
    masks = {"2.weight": torch.zeros(2, 4, dtype=torch.bool)}
    small = check(model, masks, X)
    assert sizes(small) == [(1, 3), (2, 1)]
    assert [stay.reason for stay in small.compaction.stayed] == ["one unit at least must stay"]


def test_groups_that_are_all_dead_keep_one_unit():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 1, groups=4), nn.ReLU(), nn.Conv2d(8, 2, 1), Mean(2, 3))
    small = check(model, {"3.weight": torch.zeros(2, 8, 1, 1, dtype=torch.bool)}, IMAGE)
    assert sizes(small) == [(1, 3, 1, 1), (1, 1, 1, 1), (2, 1, 1, 1)]
    assert "one unit at least must stay" in [stay.reason for stay in small.compaction.stayed]


def test_a_weight_that_is_standardised_keeps_what_its_statistics_run_over():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True)
            return F.conv2d(x, weight.reshape_as(self.weight), self.bias)

    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), Standardised(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1))
    masks = {"2.weight": without(model, "2.weight", 1, [1]), "4.weight": without(model, "4.weight", 1, [0, 5])}
    assert sizes(check(model, masks, IMAGE)) == [(4, 3, 1, 1), (4, 4, 3, 3), (2, 4, 1, 1)]


def test_random_numbers_of_python_and_numpy_are_the_same_for_both():
    class Masks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            y = self.first(x).relu()
            if self.training:
                y = y * float(np.random.rand()) * random.random()  # noqa: NPY002 -- as models do
            return self.out(y)

    model = Masks()
    state = random.getstate()
    small = compact(model, X, {"out.weight": without(model, "out.weight", 1, [1])})
    assert width(small, "first") == 3
    assert random.getstate() == state


def test_a_write_into_a_list_of_tensors_is_seen():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Linear(3, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = self.first(x)
            torch._foreach_add_([x], 1.0)  # units that the first layer leaves at zero send one
            return self.third(self.second(x).relu())

    rows, columns = torch.tensor([True, False, True, False]), torch.tensor([True, False, True, True])
    masks = {"first.weight": rows[:, None].expand(4, 3), "third.weight": columns.expand(2, 4)}
    small = check(Lists(), masks, torch.rand(2, 3))
    assert sizes(small) == [(4, 3), (3, 4), (2, 3)]
