"""Laws of attach, attached, bake, rewind, load_state, shuffle and density."""

import copy
import io
import pickle
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import synflow
from masking import Small, assert_masks_hold, assert_same, batches, random_masks, seen, small, train, zeroed
from synflow import prune
from synflow.errors import SynflowError
from synflow.masks.attach import attach, attached, bake, density, fingerprint, shuffle
from zoo import ZOO

WITHOUT_PICKLE = {"weight_norm"}  # a parametrized module of torch refuses


def run(model, example):
    """Outputs of one forward pass, as a flat list of tensors."""
    torch.manual_seed(0)
    output = model(*example) if isinstance(example, tuple) else model(example)
    leaves = torch.utils._pytree.tree_leaves(vars(output) if hasattr(output, "logits") else output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def picture(model):
    """All that `bake` must give back."""
    return (
        [(name, id(parameter)) for name, parameter in model.named_parameters(remove_duplicate=False)],
        [name for name, _ in model.named_buffers()],
        list(model.state_dict()),
        [type(module) for module in model.modules()],
        [sorted(set(vars(module)) - {"_flat_weight_refs"}) for module in model.modules()],
    )


@pytest.mark.parametrize("name", ZOO)
def test_attached_is_the_network_with_zeros_in_it(name):
    model, _, data, loss = ZOO[name]()
    masks = random_masks(model)
    twin, before = zeroed(model, masks), picture(model)
    attach(model, masks)
    assert_masks_hold(model, masks)
    assert picture(model)[0] == before[0]
    for left, right in zip(run(model, data[0][0]), run(twin, data[0][0]), strict=True):
        assert torch.equal(left, right)
    for network in (model, twin):
        torch.manual_seed(0)
        inputs, targets = data[0]
        loss(network(*inputs) if isinstance(inputs, tuple) else network(inputs), targets).backward()
    for (key, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        if theirs.grad is not None and key in masks:
            theirs.grad.masked_fill_(~masks[key], 0)
        assert (mine.grad is None and theirs.grad is None) or torch.equal(mine.grad, theirs.grad), key
    assert_same(bake(model), masks)
    assert picture(model) == before
    assert_same(model.state_dict(), twin.state_dict())
    assert attached(model) == {}


@pytest.mark.parametrize("name", ZOO)
def test_copies_and_pickles_keep_their_masks_whatever_happens_to_the_model(name):
    model, example, *_ = ZOO[name]()
    model.eval()
    masks = random_masks(model)
    attach(model, masks)
    run(model, example)
    copies = [copy.deepcopy(model)]
    if name not in WITHOUT_PICKLE | {"dict_output", "dataclass_output", "tuple_output"}:
        copies.append(pickle.loads(pickle.dumps(model)))
    bake(model)
    for twin in copies:
        assert_masks_hold(twin, masks)
        for left, right in zip(run(twin, example), run(model, example), strict=True):
            assert torch.equal(left, right)
        bake(twin)
        assert [type(module) for module in twin.modules()] == [type(module) for module in model.modules()]


def test_plain_model_after_bake_pickles_and_loads_with_torch():
    model, masks = small()
    attach(model, masks)
    train(model, torch.optim.SGD(model.parameters(), 0.1), batches(1))
    bake(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert_same(loaded.state_dict(), model.state_dict())
    assert all(type(module).__module__.startswith(("torch.", "masking")) for module in loaded.modules())


def test_repr_shows_the_density_of_each_layer():
    model = nn.Sequential(nn.Linear(2, 2), nn.LSTM(1, 1), nn.MultiheadAttention(2, 1), nn.ReLU())
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters() if p.dim() > 1}
    masks["0.weight"][0] = False
    masks["1.weight_hh_l0"][:3] = False
    attach(model, masks)
    lines = repr(model).splitlines()
    assert "(0): Linear(in_features=2, out_features=2, bias=True, density=0.5)" in lines[1]
    assert "density={'weight_hh_l0': 0.25, 'weight_ih_l0': 1.0})" in lines[2]
    assert "density=1.0" in lines[4]
    assert "ReLU()" in lines[7]
    bake(model)
    assert "density" not in repr(model)


class Terse(nn.Linear):
    def __repr__(self):
        return f"Terse({self.in_features})"


def test_repr_of_a_class_with_its_own():
    layer = Terse(2, 2)
    attach(layer, {"weight": torch.eye(2, dtype=torch.bool)})
    assert repr(layer) == "Terse(2, density=0.5)"


@given(seed=st.integers(0, 10**6), kept=st.floats(0, 1))
def test_attach_bake_attach_is_the_identity(seed, kept):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.GRU(4, 2))
    masks = {name: torch.rand_like(p) < kept for name, p in model.named_parameters()}
    before = picture(model)
    attach(model, masks)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert_same(bake(model), masks)
    assert picture(model) == before
    attach(model, masks)
    assert_same(model.state_dict(), state)
    assert density(attached(model)) == density(masks)


def mask_like(model, name):
    return torch.ones_like(dict(model.named_parameters())[name], dtype=torch.bool)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m | {"nowhere.weight": m["conv.weight"]}, "no parameter nowhere.weight; it has conv.weight"),
        (lambda m: m | {"head.weight": m["mix.weight"]}, "further names of tied weights; use the first"),
        (lambda m: m | {3: m["mix.weight"]}, "no parameter 3"),
        (lambda m: m | {"mix.weight": m["mix.weight"].float()}, "boolean tensor.*float32.*mask != 0"),
        (lambda m: m | {"mix.weight": m["mix.weight"].tolist()}, "boolean tensor.*list"),
        (lambda m: m | {"mix.weight": m["mix.weight"][:2]}, r"shape \(2, 8\), the weight \(8, 8\)"),
        (lambda m: m | {"mix.weight": m["mix.weight"].flatten()}, r"shape \(64,\)"),
        (lambda m: m | {"mix.weight": m["mix.weight"].to("meta")}, "meta"),
        (lambda m: list(m.items()), "must be a dict of boolean tensors by parameter name, got list"),
    ],
)
def test_attach_refuses_what_does_not_fit_and_changes_nothing(change, message):
    model, masks = small()
    before, state = picture(model), copy.deepcopy(model.state_dict())
    with pytest.raises(SynflowError, match=message):
        attach(model, change(masks))
    assert picture(model) == before
    assert_same(model.state_dict(), state)


def test_lazy_meta_and_scripted_weights_are_refused_with_the_way_out():
    with pytest.raises(SynflowError, match="run a batch"):
        attach(nn.LazyLinear(2), {"weight": torch.ones(2, 2, dtype=torch.bool)})
    with pytest.raises(SynflowError, match="materialize"):
        attach(nn.Linear(2, 2, device="meta"), {"weight": torch.ones(2, 2, dtype=torch.bool)})
    with pytest.raises(SynflowError, match="TorchScript"):
        attach(torch.jit.script(nn.Linear(2, 2)), {"weight": torch.ones(2, 2, dtype=torch.bool)})


def test_lazy_layer_after_its_first_batch():
    model = nn.Sequential(nn.LazyLinear(2), nn.LazyConv1d(2, 1))
    model(torch.randn(1, 2, 3))
    masks = random_masks(model)
    attach(model, masks)
    model(torch.randn(1, 2, 3))
    assert_masks_hold(model, masks)


def test_attaching_again_tightens_and_never_revives():
    model, masks = small()
    attach(model, masks)
    tighter = {name: mask & (torch.rand(mask.shape) < 0.5) for name, mask in masks.items()}
    attach(model, tighter)
    assert_masks_hold(model, tighter)
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(SynflowError, match=r"keeps \d+ weights that the attached mask has pruned.*bake"):
        attach(model, masks)
    assert_same(model.state_dict(), state)
    attach(model, {})
    assert_masks_hold(model, tighter)


def test_more_masks_can_be_added_to_the_same_module():
    layer = nn.LSTM(2, 2)
    masks = random_masks(layer)
    for name, mask in masks.items():
        attach(layer, {name: mask})
    assert_masks_hold(layer, masks)
    assert_same(bake(layer), masks)
    assert type(layer) is nn.LSTM


def test_masks_given_and_returned_are_not_those_of_the_model():
    model, masks = small()
    attach(model, masks)
    expected = copy.deepcopy(masks)
    for mask in [*masks.values(), *attached(model).values()]:
        mask.fill_(True)
    assert_masks_hold(model, expected)
    assert "_flat_weights" not in vars(model.rnn), "no second reference to the raw weights"


def test_bake_of_a_plain_model_does_nothing():
    model, _ = small()
    before = picture(model)
    assert bake(model) == {}
    assert picture(model) == before


@pytest.mark.parametrize(
    "write",
    [
        nn.init.normal_,
        nn.init.zeros_,
        nn.init.ones_,
        nn.init.kaiming_uniform_,
        nn.init.xavier_normal_,
        nn.init.orthogonal_,
        nn.init.trunc_normal_,
        lambda weight: nn.init.constant_(weight, 2.0),
        lambda weight: nn.init.sparse_(weight, 0.5),
        lambda weight: weight.copy_(torch.ones(8, 8)),
        lambda weight: weight.mul_(2),
    ],
)
def test_a_write_that_would_be_lost_is_refused(write):
    model, masks = small()
    attach(model, masks)
    weights = seen(model)
    with torch.no_grad(), pytest.raises(SynflowError, match="would be lost"):
        write(model.mix.weight)
    assert_same(seen(model), weights)


def test_initialisation_through_the_module_or_the_parameter_arrives():
    model, masks = small()
    attach(model, masks)
    fresh = small(seed=5)[0]
    torch.manual_seed(7)
    model.mix.reset_parameters()
    model.rnn.reset_parameters()
    torch.manual_seed(7)
    fresh.mix.reset_parameters()
    fresh.rnn.reset_parameters()
    assert torch.equal(model.mix.weight, fresh.mix.weight * masks["mix.weight"])
    assert torch.equal(model.rnn.weight_hh_l0, fresh.rnn.weight_hh_l0 * masks["rnn.weight_hh_l0"])

    def init(module):
        if type(module) is nn.Conv2d:
            nn.init.constant_(module.weight, 3.0)

    model.apply(init)
    assert torch.equal(model.conv.weight, 3.0 * masks["conv.weight"])
    nn.init.constant_(dict(model.named_parameters())["mix.weight"], 2.0)
    assert torch.equal(model.mix.weight, 2.0 * masks["mix.weight"])
    model.head.weight = nn.Parameter(torch.ones(8, 8))
    assert torch.equal(model.head.weight, 1.0 * masks["mix.weight"])
    assert_masks_hold(model, attached(model))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
def test_whatever_an_optimizer_leaves_behind_a_mask_is_never_seen(value):
    model, masks = small()
    attach(model, masks)
    with torch.no_grad():
        for name, mask in masks.items():
            dict(model.named_parameters())[name][~mask] = value
    assert_masks_hold(model, masks)
    assert model(torch.randn(2, 2, 6, 6)).isfinite().all()
    for name, mask in masks.items():
        assert not model.state_dict()[name][~mask].any(), "a checkpoint holds zeros"
    assert not any(dict(model.named_parameters())[name][~mask].any() for name, mask in masks.items())


def test_parametrizing_a_masked_weight_is_refused_before_it_breaks_anything():
    model, masks = small()
    attach(model, masks)
    with pytest.raises(SynflowError, match="attach the masks afterwards"):
        nn.utils.parametrizations.weight_norm(model.mix)
    assert_masks_hold(model, masks)


@pytest.mark.parametrize(
    "name", ["vgg_like", "encoder_layer", "lstm", "tied_autoencoder", "repeated_module", "bfloat16"]
)
@pytest.mark.parametrize("score", ["synflow", "magnitude"])
def test_pruning_goes_on_from_the_attached_masks(name, score):
    model, example, *_ = ZOO[name]()
    first = prune(model, example, density=0.6, score=score, steps=2)
    expected = prune(zeroed(model, first), example, density=0.4, score=score, steps=2, masks=first)
    attach(model, first)
    state = copy.deepcopy(model.state_dict())
    second = prune(model, example, density=0.4, score=score, steps=2)
    assert_same(second, expected)
    assert_same(model.state_dict(), state)
    assert_masks_hold(model, first)
    attach(model, second)
    assert_masks_hold(model, second)
    assert fingerprint(model) == second.about.get("fingerprint", fingerprint(model))


class Told(dict):
    about = {"method": "by hand"}  # noqa: RUF012


@given(seed=st.integers(0, 2**40), sizes=st.lists(st.integers(0, 40), max_size=4))
def test_shuffle_permutes_within_each_mask(seed, sizes):
    masks = {f"layer{i}": torch.rand(n, 3) < 0.4 for i, n in enumerate(sizes)}
    state = torch.random.get_rng_state()
    shuffled = shuffle(masks, seed)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert list(shuffled) == list(masks)
    for name, mask in masks.items():
        assert shuffled[name].shape == mask.shape
        assert shuffled[name].dtype == torch.bool
        assert shuffled[name].sum() == mask.sum()
    assert_same(shuffle(dict(reversed(masks.items())), seed), dict(reversed(shuffled.items())))


def test_shuffle_depends_on_seed_and_name_and_keeps_what_masks_say_of_themselves():
    masks = Told(a=torch.arange(100) < 50, b=torch.arange(100) < 50)
    one, two = shuffle(masks, 1), shuffle(masks, 2)
    assert not torch.equal(one["a"], two["a"])
    assert not torch.equal(one["a"], one["b"])
    assert not torch.equal(one["a"], masks["a"])
    assert one.about == {"method": "by hand", "shuffled": 1}
    assert masks.about == {"method": "by hand"}


def test_density():
    assert density({}) == 1.0
    assert density({"a": torch.zeros(3, dtype=torch.bool), "b": torch.ones(1, dtype=torch.bool)}) == 0.25


def test_fingerprint_is_of_names_and_shapes_alone():
    model, masks = small()
    print_of_it = fingerprint(model)
    assert fingerprint(attach(copy.deepcopy(model), masks)) == print_of_it
    assert fingerprint(Small().half()) == print_of_it
    model.head.bias = nn.Parameter(torch.ones(9))
    assert fingerprint(model) != print_of_it


@pytest.mark.parametrize("make", [lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9), torch.optim.AdamW])
def test_momentum_from_before_does_not_move_pruned_weights(make):
    model, masks = small()
    optimizer = make(model.parameters())
    train(model, optimizer, batches(3))
    attach(model, masks)
    copied, other = copy.deepcopy((model, optimizer))
    for network, steps in ((model, optimizer), (copied, other)):
        train(network, steps, batches(2))
        parameters = dict(network.named_parameters())
        assert all(not parameters[name][~mask].any() for name, mask in masks.items())
        assert (parameters["mix.weight"] != small()[0].mix.weight)[masks["mix.weight"]].any()


class HeldTwice(nn.Module):
    """A weight that a plain list holds as well, and that forward reads from there."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.weights = [self.first.weight]

    def forward(self, x):
        return self.last(torch.relu(torch.nn.functional.linear(x, self.weights[0], self.first.bias)))


def by_optimizer(_model, optimizer):
    optimizer.step()


def by_hand(model, _optimizer):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * (parameter.grad + 0.01 * parameter)


def by_hand_on_the_list(model, _optimizer):
    with torch.no_grad():
        model.weights[0] -= 0.1 * model.weights[0].grad


@pytest.mark.parametrize("update", [by_optimizer, by_hand, by_hand_on_the_list])
@pytest.mark.parametrize("made", ["as it is", "copied", "pickled"])
def test_a_weight_that_a_list_holds_as_well_stays_pruned(update, made):
    torch.manual_seed(0)
    model, inputs = HeldTwice(), torch.randn(16, 6)
    masks = synflow.prune(model, torch.ones(1, 6), compression=4)
    with pytest.warns(UserWarning, match=r"first\.weight is also held by model\.weights\[0\].*synflow\.unmasked"):
        attach(model, masks)
    model = {"copied": copy.deepcopy, "pickled": lambda m: pickle.loads(pickle.dumps(m))}.get(made, lambda m: m)(model)
    before = model.weights[0].detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        assert not model.weights[0].grad[~masks["first.weight"]].any()
        update(model, optimizer)
        assert not model.weights[0][~masks["first.weight"]].any()
    assert not torch.equal(model.weights[0], before)
    model.weights[0].data.add_(1)
    before = model(inputs)
    assert not model.weights[0][~masks["first.weight"]].any()
    bake(model)
    assert torch.equal(model(inputs), before)
    model.weights[0].data.add_(1)
    model(inputs).sum().backward()
    assert model.weights[0].all(), "a baked model is plain"
    assert model.weights[0].grad[~masks["first.weight"]].any()


@pytest.mark.parametrize(
    ("hold", "where"),
    [
        (lambda m: setattr(m, "kept", {"w": (m[0].weight,)}), r"kept\['w'\]\[0\]"),
        (lambda m: setattr(m[2], "view", m[0].weight.data.view(-1)), r"2\.view"),
        (lambda m: m.register_buffer("flat", m[0].weight.detach()[1:].t()), "flat"),
        (lambda m: setattr(m, "ns", types.SimpleNamespace(w=m[0].weight)), r"ns\.w"),
        (lambda m: setattr(m, "f", lambda x, w=m[0].weight: x @ w), "f of <lambda>"),
    ],
)
def test_every_second_hold_of_a_masked_weight_is_named_once(hold, where):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    hold(model)
    with pytest.warns(UserWarning, match=rf"0\.weight is also held by model\.{where}, where") as told:
        attach(model, {"0.weight": torch.rand(8, 6) < 0.5})
    assert [warning.filename for warning in told] == [__file__]  # it points at the line of the caller


def test_what_is_no_second_hold_gives_no_warning(recwarn):
    flat = torch.randn(2, 6, 6)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False), nn.LSTM(6, 6))
    model[0].weight, model[1].weight = nn.Parameter(flat[0]), nn.Parameter(flat[1])  # side by side
    model.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, {name: torch.rand_like(weight) < 0.5 for name, weight in model.named_parameters()})
    assert not recwarn.list


def test_two_parameters_on_the_same_memory_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = nn.Parameter(model[0].weight.data)
    message = r"0\.weight and 2\.weight are two Parameters on the same memory.*tie them"
    with pytest.raises(SynflowError, match=message):
        attach(model, {"0.weight": torch.eye(4).bool()})
    with pytest.raises(SynflowError, match=message):
        synflow.prune(model, torch.ones(1, 4), compression=2)
    with pytest.raises(SynflowError, match=r"2\.weight and 0\.weight are two"):
        synflow.prune(model, torch.ones(1, 4), compression=2, protect="0")
    model[2].weight = model[0].weight
    attach(model, synflow.prune(model, torch.ones(1, 4), compression=2))
    assert int((model[2].weight != 0).sum()) == 8


def test_weights_in_containers_and_objects_get_the_scores_of_ordinary_ones():
    torch.manual_seed(0)
    model = HeldTwice()
    plain = nn.Sequential(copy.deepcopy(model.first), nn.ReLU(), copy.deepcopy(model.last))
    scores = synflow.score(plain, torch.ones(1, 6))
    for held in ([model.first.weight], {"w": (model.first.weight,)}, types.SimpleNamespace(w=model.first.weight)):
        model.weights = held
        model.forward = types.MethodType(read_held, model)
        found = synflow.score(model, torch.ones(1, 6))
        assert torch.equal(found["first.weight"], scores["0.weight"])
        del model.forward


def read_held(self, x):
    held = self.weights
    weight = held[0] if isinstance(held, list) else held["w"][0] if isinstance(held, dict) else held.w
    return self.last(torch.relu(torch.nn.functional.linear(x, weight, self.first.bias)))


def test_a_weight_whose_entries_share_memory_is_refused():
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.ones(1, 1).expand(4, 4))
    with pytest.raises(SynflowError, match=r"weight: entries of this weight share memory.*clone"):
        attach(layer, {"weight": torch.eye(4).bool()})
    with pytest.raises(SynflowError, match="share memory"):
        synflow.prune(nn.Sequential(layer, nn.Linear(4, 2)), torch.ones(1, 4), compression=2)
    layer.weight = nn.Parameter(layer.weight.detach().clone(memory_format=torch.contiguous_format))
    attach(layer, {"weight": torch.eye(4).bool()})
    bake(layer)
    assert torch.equal(layer.weight, torch.eye(4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attach(3, {}), "model must be a torch.nn.Module, got int"),
        (lambda: attach({}, nn.Linear(2, 2)), "model must be a torch.nn.Module, got dict"),
        (lambda: bake(None), "model must be a torch.nn.Module, got NoneType"),
        (lambda: density(nn.Linear(2, 2)), r"got Linear; of a model: density\(attached\(model\)\)"),
        (lambda: density({"a": torch.ones(2)}), "a: a mask is a boolean tensor.*float32"),
        (lambda: shuffle(nn.Linear(2, 2)), "masks must be a dict"),
        (lambda: shuffle({"a": 3}), "a: a mask is a boolean tensor.*int"),
        (lambda: synflow.rewind(nn.Linear(2, 2), 3), "a state is a dict of tensors by name.*got int"),
        (lambda: synflow.load_state(nn.Linear(2, 2), {1: 2}), "a state is a dict of tensors by name"),
        (lambda: synflow.fingerprint(3), "model must be a torch.nn.Module, got int"),
        (lambda: synflow.compact(3, torch.ones(1)), "model must be a torch.nn.Module, got int"),
    ],
)
def test_what_is_no_model_or_no_masks_is_named(call, message):
    with pytest.raises(SynflowError, match=message):
        call()
