"""Balanced scores: every layer sums to the flow, chains give the paper's masks, and no layer dies under the guard."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import synflow
from blocks import Add
from checks import kept, mlp
from strategies import chains, networks
from synflow.flow.measure import measure
from synflow.flow.passes import WITHOUT_SHIFTS
from synflow.flow.paths import cuts, reach
from synflow.network.private_copy import open_network
from synflow.pruning.engine import EngineSettings
from synflow.pruning.live_layers import LayerGuard, _ascending
from synflow.pruning.plain_engine import PlainEngine
from synflow.pruning.skeleton import find_skeleton


def alive(network, masks):
    found = reach(network, masks)
    return {name for name, mask in found.on_path.items() if found.connected and bool(mask.any())}


def residual(width=12, blocks=3, seed=0):
    """A trunk with branches that carry little beside it: the paper's flow empties them."""
    torch.manual_seed(seed)
    layers = [nn.Linear(6, width, bias=False)]
    for _ in range(blocks):
        branch = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False))
        for parameter in branch.parameters():
            parameter.data *= 0.1
        layers.append(Add(branch, nn.Identity()))
    return nn.Sequential(*layers, nn.Linear(width, 4, bias=False)).double(), torch.ones(1, 6, dtype=torch.float64)


@given(networks(kinds=("residual", "concat", "grouped", "attention", "gated"), zeros=False, dtype=torch.float64))
def test_every_layer_sums_to_the_flow(network):
    opened = open_network(network.model, network.example)
    flow, scores = measure(opened), synflow.score(network.model, network.example, "balanced")
    for name, score in scores.items():
        if name in cuts(opened):
            # Its scores sum to the flow as they are, but for terms that start at a bias behind it.
            assert torch.equal(score, flow.scores[name])
        else:
            assert float(score.sum()) == pytest.approx(flow.value, rel=1e-9) or not bool(flow.scores[name].any())


@settings(max_examples=10)
@given(chains(dtype=torch.float64, zeros=False), st.integers(2, 8), st.floats(2, 20))
def test_on_chains_masks_are_those_of_the_paper_to_the_last_bit(network, steps, compression):
    opened = open_network(network.model, network.example)
    if any(isinstance(module, nn.LayerNorm | nn.GroupNorm) for module in network.model.modules()):
        return
    assert measure(opened, options=WITHOUT_SHIFTS).value > 0
    if cuts(opened) != set(opened.weights):
        return  # a bias adds terms that do not meet the layers before it
    how = dict(density=max(len(opened.weights), opened.size / compression) / opened.size, steps=steps, guard=False)
    paper = synflow.prune(network.model, network.example, **how)
    balanced = synflow.prune(network.model, network.example, score="balanced", **how)
    assert all(torch.equal(paper[name], balanced[name]) for name in paper)


@settings(max_examples=8)
@given(
    networks(kinds=("residual", "concat", "grouped"), zeros=False),
    st.floats(1.5, 50),
    st.integers(1, 8),
    st.sampled_from(["exponential", "certified"]),
)
def test_no_layer_dies_while_the_count_allows_it(network, compression, steps, schedule):
    opened = open_network(network.model, network.example)
    whole = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in opened.weights.items()}
    first, skeleton = alive(opened, whole), find_skeleton(opened, whole, tight=True)
    keep = max(round(opened.size / compression), skeleton.size, len(opened.weights))
    how = dict(density=keep / opened.size, score="balanced", schedule=schedule)
    masks = synflow.prune(network.model, network.example, steps=None if schedule == "certified" else steps, **how)
    assert kept(masks) == keep
    assert set(masks.about.get("given_up", "").split(", ")) - {""} == first - alive(opened, masks)


def test_the_papers_flow_empties_branches_and_shares_do_not():
    model, example = residual()
    network = open_network(model, example)
    paper = synflow.prune(model, example, compression=8)
    shares = synflow.prune(model, example, compression=8, score="balanced")
    assert len(alive(network, paper)) < len(paper)
    assert alive(network, shares) == set(shares)
    assert kept(shares) == kept(paper)


def test_below_the_fewest_weights_layers_are_given_up_and_named():
    model, example = residual()
    network = open_network(model, example)
    masks = synflow.prune(model, example, density=5 / network.size, score="balanced")
    assert kept(masks) == 5
    assert synflow.certify(model, masks, example).connected


def test_the_fewest_weights_of_a_chain_and_of_a_residual_network():
    chain = mlp(5, 9, 8, 3)
    found = synflow.limits(chain, torch.ones(1, 5))
    assert (found.layers, found.for_path, found.for_layers, found.exact) == (3, 3, 3, True)
    model, example = residual()
    found = synflow.limits(model, example)
    assert found.layers == found.for_layers == 8
    assert found.for_path == 2
    assert "every layer alive needs 8" in str(found)


@pytest.mark.parametrize("score", ["magnitude", "random"])
@pytest.mark.parametrize("compression", [10, 60])
def test_a_skeleton_guards_any_score(score, compression):
    model, example = residual(seed=3)
    network = open_network(model, example)
    free = synflow.prune(model, example, compression=compression, score=score, guard=False)
    held = synflow.prune(model, example, compression=compression, score=score, guard=True)
    assert kept(free) == kept(held)
    assert alive(network, held) == set(held)
    assert held.about["kept_by_guard"] == sum(int((held[name] & ~free[name]).sum()) for name in held)
    assert held.about["kept_by_guard"] <= held.about["skeleton"]


def test_the_layer_with_the_least_flow_is_given_up_first():
    model, example = residual()
    for parameter in model[2].parameters():
        parameter.data *= 0.01
    network = open_network(model, example)
    whole = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    engine = PlainEngine(network, whole, EngineSettings(balanced=True, cuts=cuts(network)))
    guard, scores = LayerGuard(engine, network.size), engine.measure()
    guard._give_up(scores)
    assert guard.given_up == [min(scores.layer_flows, key=scores.layer_flows.get)]
    assert guard.given_up[0].startswith("2.")
    assert guard.needed == set(whole) - set(guard.given_up)


def test_single_weights_are_tried_lightest_first():
    scores = {"a": torch.tensor([3.0, 1.0, 7.0, 0.0]), "b": torch.tensor([[2.0, 9.0]])}
    masks = {"a": torch.tensor([True, True, True, False]), "b": torch.tensor([[True, True]])}
    assert _ascending(scores, masks, 3) == [("a", 1), ("b", 0), ("a", 0)]
    assert _ascending(scores, masks, 1) == [("a", 1)]
