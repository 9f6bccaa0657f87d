"""Batch norms that divide by the mean flow of their tensor, in networks that are no chains, and balanced scores."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import synflow
from synflow.engine.thresholds import EVERYTHING_ON, using
from synflow.flow.measure import measure
from synflow.flow.passes import PassOptions
from synflow.models.built_in import Residual, build
from synflow.network.private_copy import open_network

NORMS = PassOptions(norms=True)
LAYERS = ("0.branch.0.weight", "0.branch.2.weight", "0.shortcut.0.weight", "1.weight")


def branched():
    """x -> relu(norm(A norm(B x)) + norm(C x)) -> D, as linear layers in float64."""
    torch.manual_seed(0)
    branch = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 6), nn.BatchNorm1d(6))
    shortcut = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))
    model = nn.Sequential(Residual(branch, shortcut), nn.Linear(6, 3)).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, -2, 2)
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return model, torch.ones(1, 5, dtype=torch.float64)


def by_the_formula(model, kept, scales=None):
    """Flow, scores and the scales of the three norms, written out; `scales` are those of a pass before."""
    named = dict(model.named_parameters())
    b, a, c, d = (np.abs(named[name].detach().numpy()) * kept[name].numpy() for name in LAYERS)
    gains = [np.abs(named[f"0.{name}.weight"].detach().numpy()) for name in ("branch.1", "branch.3", "shortcut.1")]
    ones = np.ones(5)
    first, third = b @ ones, c @ ones
    one, three = (first.mean(), third.mean()) if scales is None else (scales[0], scales[2])
    inner, right = gains[0] * first / one, gains[2] * third / three
    second = a @ inner
    two = second.mean() if scales is None else scales[1]
    left = gains[1] * second / two
    out = d.sum(0)  # dR/d(left + right)
    to_a = out * gains[1] / two
    to_b = (to_a @ a) * gains[0] / one
    scores = (
        to_b[:, None] * b * ones[None, :],
        to_a[:, None] * a * inner[None, :],
        (out * gains[2] / three)[:, None] * c * ones[None, :],
        d * (left + right)[None, :],
    )
    return out @ (left + right), dict(zip(LAYERS, scores, strict=True)), (one, two, three)


def everything(model):
    return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in synflow.prunable(model).items()}


def test_flow_and_scores_by_the_formula():
    model, example = branched()
    flow, scores, _ = by_the_formula(model, everything(model))
    found = measure(open_network(model, example), options=NORMS)
    assert found.value * 2.0**found.exponent == pytest.approx(flow, rel=1e-12)
    for name, score in scores.items():
        np.testing.assert_allclose(found.scores[name].numpy() * 2.0**found.exponent, score, rtol=1e-12)


@pytest.mark.parametrize("density", [1.0, 0.6])
def test_balanced_scores_by_the_formula(density):
    """Norms divide by the mean flow of the whole network; |w| sqrt(dR/d|w|) sums to R in each layer but the cut."""
    model, example = branched()
    kept = {name: torch.rand(mask.shape) < density for name, mask in everything(model).items()}
    scales = by_the_formula(model, everything(model))[2]
    flow, scores, _ = by_the_formula(model, kept, scales)
    found = synflow.score(model, example, "balanced", masks=kept)
    unit = float(found["1.weight"].sum()) / scores["1.weight"].sum()  # a power of two
    assert math.log2(unit) == pytest.approx(round(math.log2(unit)), abs=1e-12)
    np.testing.assert_allclose(found["1.weight"].numpy(), scores["1.weight"] * unit, rtol=1e-12)
    for name in LAYERS[:3]:
        spread = np.sqrt(scores[name] * np.abs(dict(model.named_parameters())[name].detach().numpy()))
        np.testing.assert_allclose(found[name].numpy(), spread * (flow * unit / spread.sum()), rtol=1e-11)


def test_without_batch_norms_scores_are_shares_of_the_flow():
    model = nn.Sequential(Residual(nn.Linear(5, 5, bias=False), nn.Identity()), nn.Linear(5, 3, bias=False)).double()
    example = torch.ones(1, 5, dtype=torch.float64)
    paper, found = synflow.score(model, example), synflow.score(model, example, "balanced")
    assert torch.equal(paper["1.weight"], found["1.weight"])  # a cut
    branch = paper["0.branch.weight"]
    torch.testing.assert_close(found["0.branch.weight"], branch * (paper["1.weight"].sum() / branch.sum()))


def small(name):
    torch.manual_seed(1)
    return build(name, width=0.25, input_shape=(3, 16, 16)).double(), torch.ones(1, 3, 16, 16, dtype=torch.float64)


def pruned(model, example, **how):
    return synflow.prune(model, example, compression=10, score="balanced", steps=8, **how)


def different(one, other):
    return sum(int((one[name] != other[name]).sum()) for name in one)


@pytest.mark.parametrize("name", ["resnet20", "mobilenet"])
def test_engines_choose_the_same_weights_and_scales_before_norms_do_not_matter(name):
    model, example = small(name)
    plain = pruned(model, example, engine="plain")
    with using(EVERYTHING_ON):
        fast = pruned(model, example)
    assert different(plain, fast) == 0
    assert "fallbacks" not in fast.about
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # each has a batch norm behind it
            module.weight.data.mul_(float(torch.rand(())) * 8 + 0.1)
    assert different(fast, pruned(model, example)) == 0


@pytest.mark.parametrize("factor", [1e-10, 1e-6, 1e6])
def test_scales_far_from_one_do_not_matter_either(factor):
    """The mean flow may be far below the epsilon that a batch norm adds to its variance."""
    model, example = branched()
    found = synflow.score(model, example, "balanced")
    model[0].branch[0].weight.data.mul_(factor)
    model[0].branch[2].weight.data.mul_(factor)
    for name, score in synflow.score(model, example, "balanced").items():
        torch.testing.assert_close(score / score.sum(), found[name] / found[name].sum(), rtol=1e-9, atol=0)


def test_other_scores_of_a_network_see_its_own_statistics():
    model, example = branched()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.running_mean, 0.5, 2)
            nn.init.uniform_(module.running_var, 0.5, 2)
    model[0].branch[0].weight.data.mul_(1e-6)
    network = open_network(model, example)
    paper, own = synflow.SCORES["synflow"](network), synflow.SCORES["balanced"](network)
    assert all(torch.equal(score, paper[name]) for name, score in synflow.SCORES["synflow"](network).items())
    assert all(torch.equal(score, own[name]) for name, score in synflow.SCORES["balanced"](network).items())
    assert all(torch.equal(buffer, dict(model.named_buffers())[name]) for name, buffer in network.model.named_buffers())
    assert all(norm.eps > 0 for norm in network.model.modules() if isinstance(norm, nn.BatchNorm1d))


def test_chains_keep_the_masks_of_the_paper():
    model, example = small("vgg11_bn")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.running_var, 0.5, 2)
    paper = synflow.prune(model, example, compression=10, steps=8)
    assert different(paper, pruned(model, example)) == 0


def test_shifts_and_batch_norms_without_statistics():
    model, example = branched()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.bias, 0.1, 1)
    network = open_network(model, example)
    with_shifts = measure(network, options=NORMS)
    without = measure(network, options=PassOptions(norms=True, shifts=False))
    assert with_shifts.had_shifts
    assert with_shifts.bent
    assert with_shifts.log2 > without.log2
    bare = nn.Sequential(
        Residual(nn.BatchNorm1d(5, track_running_stats=False), nn.Identity()), nn.Linear(5, 2, bias=False)
    )
    found = measure(open_network(bare.double(), example), options=NORMS)
    expected = 2 * float(bare[1].weight.detach().abs().sum())  # the branch has a mean flow of one, as x has
    assert found.value * 2.0**found.exponent == pytest.approx(expected, rel=1e-12)
