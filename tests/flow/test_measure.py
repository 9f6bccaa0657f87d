"""One evaluation of the flow: finite at any depth, conserved at the cuts, right for every kind of output and type."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import reference
import synflow
from checks import Function, arrays, mlp, plain_scores
from synflow.flow.measure import measure
from synflow.flow.passes import WITHOUT_SHIFTS, PassOptions
from synflow.models.built_in import build
from synflow.network.private_copy import open_network
from zoo import ZOO

X = torch.zeros(1, 3)


def truth(found):
    """Scores of a measurement as plain numbers."""
    return {name: score.double().numpy() * 2.0**found.exponent for name, score in found.scores.items()}


@pytest.mark.parametrize(
    ("name", "classes", "side"), [("resnet110", 100, 32), ("resnet1202", 10, 32), ("resnet50", 1000, 224)]
)
def test_deep_networks_score_finite_in_float32_and_conserve_their_cuts(name, classes, side):
    model, example = build(name, classes, (3, side, side)), torch.empty(1, 3, side, side)
    found = measure(open_network(model, example))
    assert found.log2 > 128
    scores = list(found.scores.values())
    assert all(score.dtype == torch.float32 and bool(torch.isfinite(score).all()) for score in scores)
    assert all(float(score.max()) > 0 for score in scores)
    for cut in (scores[0], scores[-1]):
        assert float(cut.double().sum()) == pytest.approx(found.value, rel=1e-5)


@pytest.mark.parametrize(("name", "side"), [("resnet110", 32), ("resnet50", 224)])
def test_plain_float32_fails_there(name, side):
    value, scores = plain_scores(build(name, 10, (3, side, side)), torch.ones(1, 3, side, side))
    assert not math.isfinite(value)
    assert not all(bool(torch.isfinite(score).all()) for score in scores.values())


def test_a_deep_network_prunes_to_the_exact_count():
    model = build("resnet110", 10)
    masks = synflow.prune(model, torch.empty(1, 3, 32, 32), compression=100, steps=2, guard=False)
    total = sum(mask.numel() for mask in masks.values())
    assert sum(int(mask.sum()) for mask in masks.values()) == round(total / 100)
    certificate = synflow.certify(model, masks, torch.empty(1, 3, 32, 32))
    assert certificate.connected
    assert certificate.layer_residual < 1e-5
    assert certificate.unit_residual < 1e-5


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("power", [1, 2])
def test_chains_against_matrix_products(bias, power):
    model = mlp(4, 6, 5, 3, bias=bias, dtype=torch.float64)
    network = open_network(model, torch.zeros(1, 4))
    masks = {name: torch.rand(weight.shape) < 0.7 for name, weight in network.weights.items()}
    found = measure(network, masks, power=power)
    matrices = [weight * masks[name].numpy() for name, weight in arrays(network.weights).items()]
    biases = [layer.bias.detach().numpy() for layer in model if isinstance(layer, nn.Linear)] if bias else None
    # A shift is a constant of the network: it counts with its absolute value, whatever the power of the weights.
    if bias and power == 2:
        biases = [np.sqrt(np.abs(each)) for each in biases]
    assert found.value * 2.0**found.exponent == pytest.approx(reference.chain_flow(matrices, biases, power), rel=1e-12)
    for left, right in zip(truth(found).values(), reference.chain_scores(matrices, biases, power), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-10, atol=1e-14)
    assert found.had_shifts == bias
    inputs = measure(network, masks, power=power, options=WITHOUT_SHIFTS)
    assert inputs.value * 2.0**inputs.exponent == pytest.approx(reference.chain_flow(matrices, None, power), rel=1e-12)
    assert not inputs.had_shifts


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 1, 1), (2, 1, 2), (1, 0, 4)])
def test_convolutions_against_their_matrices(stride, padding, groups):
    first = nn.Conv2d(2, 4, 3, padding=1, bias=False)
    second = nn.Conv2d(4, 4, 3, stride, padding, groups=groups, bias=False)
    model = nn.Sequential(first, nn.ReLU(), second).double()
    left, left_at, shape = reference.conv_matrix(first.weight.detach().numpy(), (2, 5, 4), 1, 1)
    right, right_at, _ = reference.conv_matrix(second.weight.detach().numpy(), shape, stride, padding, groups)
    found = measure(open_network(model, torch.zeros(1, 2, 5, 4)))
    entries = reference.chain_scores([left, right])
    for (name, score), each, at in zip(truth(found).items(), entries, (left_at, right_at), strict=True):
        np.testing.assert_allclose(score, reference.fold(each, at, score.shape), rtol=1e-10, err_msg=name)


def test_skips_and_gates_against_their_terms():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(3, 3, bias=False) for _ in range(3))

        def forward(self, x):
            hidden = x + self.a(x)
            return (self.b(hidden) * self.c(x)) + hidden

    model = Net().double()
    weights = arrays(dict(model.named_parameters()))
    inputs = reference.input_units(3)
    hidden = reference.add_units(inputs, reference.linear_units(inputs, "a.weight", weights["a.weight"]))
    gated = reference.gate_units(
        reference.linear_units(hidden, "b.weight", weights["b.weight"]),
        reference.linear_units(inputs, "c.weight", weights["c.weight"]),
    )
    terms = [term for unit in reference.add_units(gated, hidden) for term in unit]
    found = measure(open_network(model, X))
    assert found.value * 2.0**found.exponent == pytest.approx(reference.flow(terms, weights), rel=1e-12)
    for name, score in reference.scores(terms, weights).items():
        np.testing.assert_allclose(truth(found)[name], score, rtol=1e-12)


def test_a_weight_used_twice_scores_once_per_use():
    layer = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(layer, nn.ReLU(), layer).double()
    weights = {"0.weight": layer.weight.detach().numpy()}
    units = reference.input_units(2)
    for _ in range(2):
        units = reference.linear_units(units, "0.weight", weights["0.weight"])
    terms = [term for unit in units for term in unit]
    found = measure(open_network(model, torch.zeros(1, 2)))
    np.testing.assert_allclose(truth(found)["0.weight"], reference.scores(terms, weights)["0.weight"], rtol=1e-12)
    assert truth(found)["0.weight"].sum() == pytest.approx(2 * reference.flow(terms, weights))


@dataclasses.dataclass
class Packed:
    left: torch.Tensor
    right: tuple
    note: str = "kept"


@pytest.mark.parametrize(
    "pack",
    [
        lambda a, b: (a, b),
        lambda a, b: [a, (b,), None, 3],
        lambda a, b: {"a": a, "more": {"b": [b]}, "ids": torch.arange(3)},
        lambda a, b: Packed(a, (b,)),
        lambda a, b: torch.cat([a, b], 1),
    ],
    ids=["tuple", "nested", "dict", "dataclass", "one"],
)
def test_every_floating_output_counts(pack):
    model = Function(lambda self, x: pack(self.a(x), self.b(x)), a=nn.Linear(3, 2), b=nn.Linear(3, 4)).double()
    found = measure(open_network(model, X), options=WITHOUT_SHIFTS)
    total = model.a.weight.abs().sum() + model.b.weight.abs().sum()
    assert found.value * 2.0**found.exponent == pytest.approx(total.item(), rel=1e-12)


def test_outputs_of_very_different_size_are_added():
    model = Function(lambda self, x: (self.a(x), self.b(x) * 2.0**100 * 2.0**100), a=nn.Linear(3, 2), b=nn.Linear(3, 4))
    found = measure(open_network(model, X), options=WITHOUT_SHIFTS)
    assert found.log2 == pytest.approx(200 + math.log2(model.b.weight.abs().sum()), abs=1e-5)


def test_a_model_without_a_floating_output_is_refused():
    model = Function(lambda self, x: (self.a(x).shape, "text"), a=nn.Linear(3, 2))
    with pytest.raises(synflow.SynflowError, match=r"no output of the model depends on .*forward returned tuple"):
        measure(open_network(model, X))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scored_in_single(dtype):
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2)).to(dtype)
    single = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
    single.load_state_dict(model.state_dict())
    found, expected = measure(open_network(model, X.to(dtype))), measure(open_network(single, X))
    assert found.log2 == expected.log2
    for name, score in found.scores.items():
        assert score.dtype == torch.float32
        assert torch.equal(score, expected.scores[name])


def test_a_model_of_mixed_precision_is_scored_in_the_widest():
    model = Function(lambda self, x: self.b(self.a(x).float()), a=nn.Linear(3, 4).double(), b=nn.Linear(4, 2))
    model(X.double())
    found = measure(open_network(model, X.double()))
    assert {score.dtype for score in found.scores.values()} == {torch.float64}
    wide = Function(lambda self, x: self.b(self.a(x)), a=model.a, b=model.b.double())
    plain = measure(open_network(wide, X.double()))
    assert found.log2 == pytest.approx(plain.log2, abs=1e-6)


def test_an_example_that_does_not_fit_gives_the_models_own_error():
    message = r"Sequential fails on an example of shape \(1, 7\): RuntimeError: mat1"
    with pytest.raises(synflow.SynflowError, match=message) as caught:
        measure(open_network(mlp(3, 2), torch.zeros(1, 7)))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_extreme_numbers_are_reported_not_ranked():
    model = mlp(3, 4, 2)
    model[0].weight.data[0, 0] = 3e38
    model[0].weight.data[0, 1] = 3e38
    with pytest.raises(synflow.SynflowError, match=r"the flow became inf .* at the operation 'linear' in module '0'"):
        measure(open_network(model, X))


def test_gradients_can_be_left_out():
    network = open_network(mlp(3, 4, 2), X)
    assert measure(network, gradients=False).scores == {}
    assert measure(network, gradients=False).log2 == measure(network).log2


def test_no_flow_is_minus_infinity():
    network = open_network(mlp(3, 4, 2), X)
    nothing = {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    found = measure(network, nothing)
    assert (found.value, found.log2) == (0.0, -math.inf)
    assert all(not score.any() for score in found.scores.values())


def test_traced_degrees_and_unit_flows():
    model = Function(
        lambda self, x: self.c(x + self.b(torch.relu(self.a(x)))),
        a=nn.Linear(3, 4), b=nn.Linear(4, 3), c=nn.Linear(3, 2),
    )  # fmt: skip
    found = measure(open_network(model, X), options=PassOptions(shifts=False, trace=True))
    assert [d.tolist() for d in found.degrees] == [[0, 0, 1], [1, 1, 1]]
    for name, flow in found.unit_flows.items():
        torch.testing.assert_close(flow.float(), found.scores[name].sum(1), rtol=1e-5, atol=1e-6)
    assert set(found.unit_flows) == {"a.weight", "b.weight", "c.weight"}


def test_degrees_of_biases_and_powers():
    """A bias is a term that meets no weight; a power meets its base as often as its exponent says, rounded up."""
    chain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    found = measure(open_network(chain, X), options=PassOptions(trace=True))
    assert [d.tolist() for d in found.degrees] == [[0, 1], [1, 1]]
    for exponent, times in ((2, 2), (2.5, 3)):
        model = Function(lambda self, x, exponent=exponent: self.a(x) ** exponent, a=nn.Linear(3, 2))
        found = measure(open_network(model, X), options=PassOptions(shifts=False, trace=True))
        assert [d.tolist() for d in found.degrees] == [[times], [times]]


def test_sides_of_a_gate_share_the_gradient_on_request():
    model = Function(
        lambda self, x: self.c(self.a(x) * self.b(x)), a=nn.Linear(3, 4), b=nn.Linear(3, 4), c=nn.Linear(4, 2)
    ).double()
    network = open_network(model, X)
    usual, shared = (measure(network, options=PassOptions(shifts=False, shared=on)) for on in (False, True))
    assert shared.value == pytest.approx(usual.value, rel=1e-14)
    for name, factor in (("a.weight", 0.5), ("b.weight", 0.5), ("c.weight", 1.0)):
        torch.testing.assert_close(shared.scores[name], factor * usual.scores[name])


def test_a_weight_used_outside_its_layer_has_no_unit_flow():
    sample = ZOO["tied_autoencoder"]()
    found = measure(open_network(sample.model, sample.example), options=PassOptions(shifts=False, trace=True))
    assert found.unit_flows == {}
    assert [d.tolist() for d in found.degrees] == [[2], [2]]


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_has_flow_through_every_layer(name):
    sample = ZOO[name]()
    found = measure(open_network(sample.model, sample.example))
    assert math.isfinite(found.log2)
    assert all(float(score.max()) > 0 for score in found.scores.values())
    assert all(bool((score >= 0).all()) for score in found.scores.values())


def test_gains_of_norms_are_remembered_only_as_long_as_they_hold():
    """A pass remembers what it made of running statistics; written to in place, they are looked at anew."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)).double()
    network = open_network(model, torch.ones(1, 3, dtype=torch.float64))
    first = measure(network)
    assert measure(network).value == first.value
    network.model[1].running_var.fill_(4.0)
    assert measure(network).log2 == pytest.approx(first.log2 - 1, abs=1e-4)
    nn.init.ones_(network.model[1].bias)
    assert measure(network).had_shifts


@pytest.mark.parametrize(
    ("model", "example", "met"),
    [
        (nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2), nn.Flatten()), (1, 3), False),
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False)), (1, 3), True),
        (nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 4), nn.GLU()), (1, 3), True),
        (nn.LSTM(3, 4), (2, 1, 3), True),
    ],
)
def test_shifts_that_no_weight_meets_are_told_apart(model, example, met):
    """A bias of the last layer starts a flow, but none through a weight: scores are the same without it."""
    network = open_network(model.double().eval(), torch.ones(example).double())
    found = measure(network)
    assert found.had_shifts
    assert found.shifts_met is met
    if not met:
        bare = measure(network, options=WITHOUT_SHIFTS)
        for name, score in found.scores.items():
            torch.testing.assert_close(score * 2.0**found.exponent, bare.scores[name] * 2.0**bare.exponent)
