"""The theorems as checks: conservation, largest and critical compression."""

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import reference
import synflow
from blocks import Add
from checks import Function, arrays, mlp
from synflow.certificates import Conservation
from synflow.flow.paths import connected
from synflow.network.private_copy import open_network
from zoo import ZOO

DATA = (torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double(), torch.tensor([0, 1, 2, 0, 1, 2, 0]))


def relu_saliency(bias):
    """Saliency of a loss at every weight and bias of a ReLU network in double precision."""
    model = mlp(4, 6, 5, 3, bias=bias, dtype=torch.float64)

    def objective(weights):
        return F.cross_entropy(torch.func.functional_call(model, weights, (DATA[0],)), DATA[1])

    return synflow.saliency(objective, dict(model.named_parameters()))


@pytest.mark.parametrize("bias", [False, True])
def test_theorem_one_saliency_of_a_loss_is_conserved_at_each_hidden_unit(bias):
    found = relu_saliency(bias)
    for layer, following in (("0", "2"), ("2", "4")):
        inflow = found[f"{layer}.weight"].sum(1)
        if bias:
            inflow = inflow + found[f"{layer}.bias"]
        outflow = found[f"{following}.weight"].sum(0)
        torch.testing.assert_close(inflow, outflow, rtol=1e-9, atol=1e-14)
        assert inflow.abs().max() > 1e-4


def test_theorem_two_saliency_of_a_loss_is_the_same_in_every_layer():
    sums = [score.sum().item() for score in relu_saliency(False).values()]
    assert sums == pytest.approx([sums[0]] * 3, rel=1e-9)
    with_biases = relu_saliency(True)
    inputs = sum(with_biases[f"{layer}.bias"].sum().item() for layer in ("0", "2", "4"))
    first, last = with_biases["0.weight"].sum().item(), with_biases["4.weight"].sum().item()
    assert first + inputs - with_biases["4.bias"].sum().item() == pytest.approx(last, rel=1e-9)


def test_flow_is_conserved_in_chains():
    model = mlp(4, 6, 5, 3, dtype=torch.float64)
    found = synflow.conservation(model, torch.zeros(1, 4))
    assert found.cuts == ("0.weight", "2.weight", "4.weight")
    assert found.layer_residual < 1e-12
    assert found.unit_residual < 1e-12
    each = reference.chain_scores(list(arrays(dict(model.named_parameters())).values()))
    assert set(found.units) == set(found.cuts)
    for name, scores in zip(found.cuts, each, strict=True):
        (inflow, outflow), total = found.units[name], scores.sum()
        np.testing.assert_allclose(inflow.numpy(), scores.sum(1) / total, rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(outflow.numpy(), scores.sum(1) / total, rtol=1e-9, err_msg=name)
    for imbalance in reference.hidden_imbalance(each):
        np.testing.assert_allclose(imbalance, 0, atol=1e-9)


def test_only_layers_that_every_term_meets_once_are_cuts():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.branch, self.twice, self.head = (nn.Linear(3, 3) for _ in range(4))

        def forward(self, x):
            x = self.stem(x)
            x = x + self.branch(x)
            return self.head(self.twice(torch.relu(self.twice(x))))

    found = synflow.conservation(Net(), torch.zeros(1, 3))
    assert found.cuts == ("stem.weight", "head.weight")
    assert found.layers["branch.weight"] < 1
    assert found.layers["twice.weight"] == pytest.approx(2, rel=1e-5)
    assert found.layer_residual < 1e-6


def test_gates_are_met_once_per_factor():
    model = Function(lambda self, x: self.a(x) * torch.sigmoid(self.b(x)), a=nn.Linear(3, 2), b=nn.Linear(3, 2))
    assert synflow.conservation(model, torch.zeros(1, 3)).cuts == ("a.weight", "b.weight")


@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_zoo_conserves_its_flow(name):
    sample = ZOO[name]()
    found = synflow.conservation(sample.model, sample.example)
    assert found.unit_residual is None or found.unit_residual < 1e-5
    assert found.layer_residual is None or found.layer_residual < 1e-5


def test_no_flow_nothing_to_conserve():
    model = mlp(3, 4, 2)
    nothing = {n: torch.zeros_like(p, dtype=torch.bool) for n, p in model.named_parameters()}
    found = synflow.conservation(model, torch.zeros(1, 3), nothing)
    assert (found.units, found.layers, found.cuts) == ({}, {}, ())
    assert (found.unit_residual, found.layer_residual) == (None, None)


def test_a_conservation_that_is_off_is_seen():
    found = synflow.conservation(mlp(3, 4, 2), torch.zeros(1, 3))
    inflow, outflow = found.units["0.weight"]
    found.units["0.weight"] = (inflow, outflow + torch.tensor([0.25, 0, 0, 0]))
    found.layers["2.weight"] = 0.5
    assert found.unit_residual == pytest.approx(0.25, abs=1e-5)
    assert found.layer_residual == pytest.approx(0.5, abs=1e-5)


# Largest compression


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (mlp(5, 7, 3), (1, 5), 56 / 2),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2)), (1, 2, 4, 4), 80 / 2),
        (nn.Sequential(nn.Linear(3, 3), Add(mlp(3, 4, 3), nn.Identity()), nn.Linear(3, 2)), (1, 3), (9 + 24 + 6) / 2),
        (Add(mlp(3, 4, 5), nn.Linear(3, 5)), (1, 3), (12 + 20 + 15) / 1),
        (Add(mlp(3, 4, 3), nn.Identity()), (1, 3), math.inf),
    ],
    ids=["chain", "convolutions", "residual", "shortcut", "bypass"],
)  # fmt: skip
def test_max_compression(model, shape, expected):
    assert synflow.max_compression(model, torch.zeros(shape)) == expected


def test_max_compression_against_every_set_of_weights():
    weights = {"0.weight": np.ones((2, 2)), "2.weight": np.ones((1, 2)), "4.weight": np.ones((2, 1))}
    terms = reference.mlp_terms(weights)
    assert synflow.max_compression(mlp(2, 2, 1, 2), torch.zeros(1, 2)) == reference.max_compression(terms, weights)


def test_max_compression_counts_what_is_selected():
    model = mlp(4, 6, 5, 3)
    assert synflow.max_compression(model, torch.zeros(1, 4), protect="4") == 54 / 2
    assert synflow.max_compression(model, torch.zeros(1, 4), select="2") == 30


# Critical compression


def small_chain():
    torch.manual_seed(0)
    return mlp(4, 6, 5, 3), torch.zeros(1, 4)


@functools.cache
def single_shot(score, scope, keep):
    """Masks of so many weights, whatever is called a collapse."""
    model, example = small_chain()
    density = keep / open_network(model, example).size
    return synflow.prune(model, example, density=density, score=score, steps=1, scope=scope, guard=False)


@pytest.mark.parametrize("score", ["magnitude", "random", "synflow"])
@pytest.mark.parametrize("collapse", ["disconnected", "empty_layer"])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_single_shot_critical_compression_is_exact(score, collapse, scope):
    """Against trying every count from the largest down: the last before the first collapse of a nested family."""
    model, example = small_chain()
    network = open_network(model, example)
    size = network.size

    def survives(keep):
        masks = single_shot(score, scope, keep)
        return all(bool(m.any()) for m in masks.values()) if collapse == "empty_layer" else connected(network, masks)

    keep = next(k for k in range(size, 0, -1) if k == 3 or not survives(k - 1))
    found = synflow.critical_compression(model, example, score=score, steps=1, scope=scope, collapse=collapse)
    assert found == pytest.approx(size / keep)


def test_iterative_critical_compression_is_found_within_the_tolerance():
    model, example = mlp(6, 10, 10, 4), torch.zeros(1, 6)
    found = synflow.critical_compression(model, example, steps=5, tolerance=0.05)
    one = synflow.critical_compression(model, example, steps=1)
    size = 60 + 100 + 40
    assert one <= found <= size / 3
    keep = round(size / found)
    masks = synflow.prune(model, example, density=keep / size, steps=5, guard=False)
    assert connected(open_network(model, example), masks)


def test_critical_compression_reads_the_data_once():
    model = mlp(4, 6, 3)
    data = iter([(torch.randn(5, 4), torch.randint(3, (5,)))])
    found = synflow.critical_compression(model, torch.zeros(1, 4), score="snip", data=data, steps=2, tolerance=0.2)
    assert 1 <= found <= 42 / 2


def test_critical_compression_knows_its_words():
    model = mlp(4, 6, 3)
    with pytest.raises(
        synflow.SynflowError,
        match="no collapse 'empty' .did you mean empty_layer.*; choose from disconnected, empty_layer",
    ):
        synflow.critical_compression(model, torch.zeros(1, 4), collapse="empty")
    with pytest.raises(synflow.SynflowError, match="no score 'synflo'"):
        synflow.critical_compression(model, torch.zeros(1, 4), score="synflo")
    with pytest.raises(synflow.SynflowError, match="needs data"):
        synflow.critical_compression(model, torch.zeros(1, 4), score="snip")


def test_the_residual_is_a_share_of_what_flows_through_the_layer():
    def residual(inflow, outflow):
        return Conservation({"a": (torch.tensor(inflow), torch.tensor(outflow))}, {}, ()).unit_residual

    assert residual([0.5, 0.5], [0.5, 0.25]) == 0.25
    assert residual([2.0, 6.0], [2.0, 4.0]) == 0.25  # terms meet this layer eight times
    assert residual([0.01, 0.01], [0.01, 0.0]) == pytest.approx(0.01)


def test_conservation_needs_masks_or_none_at_all():
    with pytest.raises(synflow.SynflowError, match="there are no masks to look at"):
        synflow.conservation(mlp(4, 6, 3), torch.ones(1, 4), {})
