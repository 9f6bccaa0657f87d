"""Removing weights so that a path survives: the union bound, splitting, single removals, and how far it can go."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

import reference
import synflow
from blocks import Add
from checks import Function, arrays, kept, mlp
from masking import assert_same
from synflow.flow.measure import measure
from synflow.flow.passes import WITHOUT_SHIFTS
from synflow.flow.paths import connected, fewest_weights, shortest_path
from synflow.models.built_in import build
from synflow.network.private_copy import open_network
from synflow.pruning.engine import EngineSettings
from synflow.pruning.plain_engine import PlainEngine
from synflow.pruning.safe_removal import PathGuard, StuckError, flow_from_inputs, remove_safely
from synflow.pruning.settings import checked_run


def everything(network):
    return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}


def lost(scores, masks):
    return sum(float(scores[name][~mask].double().sum()) for name, mask in masks.items())


def test_the_bound_of_the_library_is_that_of_the_paths():
    model = mlp(3, 3, 2, dtype=torch.float64)
    weights = arrays(dict(model.named_parameters()))
    terms = reference.mlp_terms(weights)
    network = open_network(model, torch.zeros(1, 3))
    found = measure(network)
    keys = [(name, at) for name, weight in weights.items() for at in range(weight.size)]
    for removed in itertools.combinations(keys, 3):
        masks = everything(network)
        for name, at in removed:
            masks[name].view(-1)[at] = False
        flow, after, bound = reference.union_bound(terms, weights, removed)
        assert lost(found.scores, masks) / found.value == pytest.approx(bound / flow)
        assert measure(network, masks).value / found.value == pytest.approx(after / flow)


def chain():
    """Scores by hand: one path of 0.9 R, one of 0.1 R, in a chain of two layers."""
    model = mlp(1, 2, 1)
    model[0].weight.data = torch.tensor([[9.0], [1.0]])
    model[2].weight.data = torch.tensor([[1.0, 1.0]])
    network = open_network(model, torch.zeros(1, 1))
    return network, everything(network), measure(network)


def masks_of(first, second):
    return {"0.weight": torch.tensor(first).bool().view(2, 1), "2.weight": torch.tensor(second).bool().view(1, 2)}


def test_a_step_below_the_flow_is_taken_whole():
    network, ones, flow = chain()
    wanted = masks_of([1, 0], [1, 0])
    removal = remove_safely(network, ones, wanted, flow, margin=0.5, always=False)
    assert removal.complete
    assert removal.pruned_fraction == pytest.approx(0.2)
    assert all(torch.equal(removal.masks[n], wanted[n]) for n in wanted)


def test_a_step_of_the_whole_flow_is_split_at_the_margin():
    network, ones, flow = chain()
    removal = remove_safely(network, ones, masks_of([0, 0], [1, 0]), flow, margin=0.5, always=False)
    assert not removal.complete
    assert removal.pruned_fraction == pytest.approx(0.2)
    assert all(torch.equal(removal.masks[n], m) for n, m in masks_of([1, 0], [1, 0]).items())
    tight = remove_safely(network, ones, masks_of([0, 0], [1, 0]), flow, margin=0.15, always=False)
    assert tight.pruned_fraction == pytest.approx(0.1)
    assert kept(tight.masks) == 3


def test_with_always_the_margin_bounds_every_removal():
    network, ones, flow = chain()
    removal = remove_safely(network, ones, masks_of([1, 0], [1, 0]), flow, margin=0.15, always=True)
    assert not removal.complete
    assert removal.pruned_fraction == pytest.approx(0.1)


def test_where_the_margin_allows_nothing_one_weight_goes():
    network, ones, flow = chain()
    removal = remove_safely(network, ones, masks_of([0, 0], [0, 1]), flow, margin=0.05, always=True)
    assert kept(removal.masks) == 3
    assert removal.pruned_fraction == pytest.approx(0.1)


def test_weights_on_every_path_cannot_go():
    network, _, _ = chain()
    one = masks_of([1, 0], [1, 0])
    flow = measure(network, one)
    with pytest.raises(StuckError, match="2 weights are left and each lies on every path") as caught:
        remove_safely(network, one, masks_of([1, 0], [0, 0]), flow, margin=0.5, always=False)
    assert caught.value.kept == 2


def test_nothing_to_remove_is_complete():
    network, ones, flow = chain()
    removal = remove_safely(network, ones, ones, flow, margin=0.5, always=True)
    assert removal.complete
    assert removal.pruned_fraction == 0


def test_a_weight_used_twice_is_tested_exactly():
    """It scores twice the flow of its paths, so the bound says nothing, yet it may go."""
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    network = open_network(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(1, 2))
    masks = {"0.weight": torch.eye(2).bool()}
    flow = measure(network, masks)
    assert flow.scores["0.weight"][0, 0] == flow.value
    removal = remove_safely(
        network, masks, {"0.weight": torch.tensor([[True, False], [False, False]])}, flow, margin=0.5, always=False
    )
    assert kept(removal.masks) == 1
    assert connected(network, removal.masks)


# Pruning as a whole


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_chains_can_be_pruned_to_one_weight_per_layer(bias, seed):
    torch.manual_seed(seed)
    model, example = mlp(6, 9, 7, 8, 4, bias=bias), torch.zeros(1, 6)
    assert synflow.max_compression(model, example) == (54 + 63 + 56 + 32) / 4
    for options in (dict(schedule="certified"), dict(steps=3), dict(steps=1), dict(score="synflow_l2", steps=2)):
        masks = synflow.prune(model, example, density=4 / 205, **options)
        assert [int(mask.sum()) for mask in masks.values()] == [1] * 4
        assert synflow.certify(model, masks, example).connected


def test_biases_do_not_get_the_guard_stuck():
    """Weights that only biases feed are idle and go first, so a chain is never stuck above one weight per layer."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    nn.init.normal_(model[3].running_mean)
    example = torch.zeros(1, 4)
    for keep in range(3, 12):
        for score in ("synflow", "synflow_l2"):
            steps = list(synflow.iterate(model, example, density=keep / 52, score=score, steps=6))
            certificate = synflow.certify(model, steps[-1].masks, example)
            assert (certificate.kept, certificate.connected) == (keep, True)
            assert certificate.flow_log2 > certificate.flow_log2_before - 12


@pytest.mark.parametrize("schedule", ["exponential", "linear", "linear_density", "certified"])
def test_every_compression_up_to_the_largest_leaves_a_path(schedule):
    model, example = mlp(4, 6, 5, 3, bias=True), torch.zeros(1, 4)
    size = 24 + 30 + 15
    for keep in range(3, size, 4):
        masks = synflow.prune(
            model, example, density=keep / size, schedule=schedule, steps=None if schedule == "certified" else 3
        )
        certificate = synflow.certify(model, masks, example)
        assert (certificate.kept, certificate.connected) == (keep, True)


class Skipped(nn.Module):
    """Three layers of which one path skips two."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 5), nn.Linear(4, 5)
        nn.init.constant_(self.d.weight, 1e-4)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x))))) + self.d(x)


def test_graphs_with_skips_reach_their_shortest_path_though_it_carries_little_flow():
    model, example = Skipped(), torch.zeros(1, 4)
    size = 24 + 36 + 30 + 20
    assert synflow.max_compression(model, example) == size
    for keep in (1, 2, 3, 5):
        for options in (dict(schedule="certified"), dict(steps=5)):
            masks = synflow.prune(model, example, density=keep / size, **options)
            assert kept(masks) == keep
            assert synflow.certify(model, masks, example).connected


def test_iterate_gets_there_as_well():
    """It yields its steps, so it cannot start again: it must not be led astray in the first place."""
    model, example = Skipped(), torch.zeros(1, 4)
    for schedule in ("certified", "exponential"):
        *_, last = synflow.iterate(model, example, density=1 / 110, schedule=schedule, steps=None)
        assert kept(last.masks) == 1
        assert synflow.certify(model, last.masks, example).connected


def test_a_network_with_a_path_that_has_no_weights_is_never_disconnected():
    model = Add(mlp(3, 4, 3), nn.Identity())
    masks = synflow.prune(model, torch.zeros(1, 3), density=1 / 24)
    assert kept(masks) == 1
    assert synflow.certify(model, masks, torch.zeros(1, 3)).connected


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_reach_their_shortest_path(kind):
    model = Function(
        lambda self, x: self.head(self.layer(x)[0][:, -1]), layer=kind(3, 4, batch_first=True), head=nn.Linear(4, 2)
    )
    example = torch.zeros(1, 3, 3)
    network = open_network(model, example)
    fewest = fewest_weights(network)
    assert fewest == {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 2}[kind]
    for keep in (fewest, fewest + 2, 20):
        masks = synflow.prune(model, example, density=keep / network.size, steps=5)
        assert kept(masks) == keep
        assert synflow.certify(model, masks, example).connected


def test_a_module_called_again_and_again_reaches_the_largest_compression():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 2))
    example = torch.zeros(1, 4)
    largest = synflow.max_compression(model, example)
    assert largest == 24 / 2
    for options in (dict(schedule="certified"), dict(steps=5)):
        masks = synflow.prune(model, example, compression=largest, **options)
        assert kept(masks) == 2
        assert synflow.certify(model, masks, example).connected


class Gates(nn.Module):
    """Gates in series: each counts the weights before it twice."""

    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, width, bias=False), nn.Linear(width, 2, bias=False)
        self.values = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x):
        x = self.first(x)
        for value, gate in zip(self.values, self.gates, strict=True):
            x = value(x) * torch.sigmoid(gate(x))
        return self.last(x)


def test_where_the_paper_s_choice_leaves_no_path_another_of_the_same_size_does():
    """Ranked by the flow that both sides of a gate share the path stays; the step is weighed by the plain scores."""
    rescued = 0
    for seed in range(3):
        torch.manual_seed(seed)
        model, example = Gates().double(), torch.zeros(1, 3, dtype=torch.float64)
        weights = synflow.prunable(model)
        compression = sum(p.numel() for p in weights.values()) / 900
        bold = synflow.prune(model, example, compression=compression, steps=1, guard=False)
        (step,) = synflow.iterate(model, example, compression=compression, steps=1)
        certificate = synflow.certify(model, step.masks, example)
        assert (certificate.connected, certificate.kept, step.substeps) == (True, 900, 1)
        if not synflow.certify(model, bold, example).connected:
            gone = lost(step.scores, step.masks)
            assert math.isclose(step.pruned_fraction, gone / 2.0**step.flow_log2, rel_tol=1e-9)
            rescued += 1
    assert rescued == 3


@pytest.mark.parametrize("schedule", ["exponential", "certified"])
@pytest.mark.parametrize("norm", [nn.LayerNorm(1), nn.MaxPool1d(1)])
def test_a_bias_before_a_divisor_or_a_maximum_does_not_fool_the_bound(schedule, norm):
    """Behind a norm a bias makes the first weight look light, though all that starts at the input passes it."""
    model = nn.Sequential(nn.Linear(1, 1), norm, nn.ReLU(), nn.Linear(1, 2))
    nn.init.constant_(model[0].weight, 0.01)
    nn.init.ones_(model[0].bias)
    nn.init.ones_(model[3].weight)
    example = torch.zeros(1, 1)
    masks = synflow.prune(
        model, example, density=2 / 3, schedule=schedule, steps=1 if schedule != "certified" else None
    )
    assert bool(masks["0.weight"].all())
    assert synflow.certify(model, masks, example).connected


def beside_a_token(entries):
    """An input that adds little to a large constant; weights of the first layer are kept where `entries` say."""
    token = torch.full((1, 2, 2), 100.0)
    model = Function(
        lambda self, x: self.last(self.first(x) + self.token), first=nn.Linear(2, 2, bias=False),
        last=nn.Linear(2, 1, bias=False), token=token,
    )  # fmt: skip
    network = open_network(model, torch.zeros(1, 2, 2), select=["first.weight", "last.weight"])
    masks = everything(network) | {"first.weight": torch.tensor(entries).bool().view(2, 2)}
    return network, masks, masks | {"first.weight": torch.zeros(2, 2, dtype=torch.bool)}, measure(network, masks)


def test_a_bound_that_counts_a_constant_proves_nothing():
    """Nearly all the flow starts at the token, so the union bound would let the last path from the input go."""
    network, masks, wanted, flow = beside_a_token([1, 1, 1, 1])
    assert flow.loose
    assert lost(flow.scores, wanted) < 0.5 * flow.value
    removal = remove_safely(network, masks, wanted, flow, margin=0.5, always=False)
    assert not removal.complete
    assert 0 < kept(removal.masks) < kept(masks)
    assert connected(network, removal.masks)
    network, masks, wanted, flow = beside_a_token([0, 0, 1, 0])
    with pytest.raises(StuckError):
        remove_safely(network, masks, wanted, flow, margin=0.5, always=False)


def test_the_bound_is_in_the_units_of_the_flow():
    """With huge biases, the flow with shifts and that without have other exponents."""
    model = mlp(3, 4, 2, bias=True, dtype=torch.float64)
    model[0].bias.data.fill_(2.0**70)
    network = open_network(model, torch.zeros(1, 3, dtype=torch.float64))
    engine = PlainEngine(network, everything(network), EngineSettings())
    scores, bare = engine.measure(), measure(network, options=WITHOUT_SHIFTS)
    assert scores.flow.exponent != bare.exponent
    bound, weighed = flow_from_inputs(engine, scores)
    assert weighed is scores
    assert math.log2(bound) + scores.flow.exponent == pytest.approx(bare.log2)


def test_a_rescue_keeps_a_shortest_path():
    model = nn.Sequential(mlp(4, 8, 8), Add(mlp(8, 8, 8), nn.Identity()), mlp(8, 3))
    run = dataclasses.replace(checked_run(model, torch.zeros(1, 4), density=0.5, steps=2), shield=None)
    path, fewest = shortest_path(run.network, run.start, heavy=True), fewest_weights(run.network)
    guard = PathGuard(run, run.new_engine(spread=False))
    for keep in (fewest, fewest + 5):
        around = list(guard._others(run.start, keep))
        assert [kept(masks) for masks in around] == [keep] * 2
        assert all(bool((path[name] <= around[-1][name]).all()) for name in path)
        assert connected(run.network, around[-1])


def test_without_need_the_default_guard_changes_nothing():
    """No path of ResNet-20 has more than 22 weights, so none of 542 has to be protected; no step takes all the flow."""
    torch.manual_seed(0)
    model, example = build("resnet20", classes=10).double(), torch.ones(1, 3, 8, 8, dtype=torch.float64)
    how = {"compression": 500, "steps": 60}
    guarded, free = synflow.prune(model, example, **how), synflow.prune(model, example, **how, guard=False)
    assert guarded.steps[-1].pruned_fraction < 1
    assert_same(dict(guarded), dict(free))
