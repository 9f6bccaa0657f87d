"""The fast engine at work: the same weights kept, weights that no flow passes, removals that are undone."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn

import synflow
from blocks import Add
from synflow.engine import EVERYTHING_ON, FastEngine, compiled, using
from synflow.network.private_copy import Network, open_network
from synflow.pruning.engine import EngineSettings


@pytest.fixture
def everything():
    """Every part of the engine is used, however small the network."""
    with using(EVERYTHING_ON):
        yield


def engine_for(network: Network, masks: dict[str, torch.Tensor] | None = None, **settings: object) -> FastEngine:
    full = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    engine = FastEngine(network, full, EngineSettings(**settings))
    if masks is not None:
        engine.keep_only(masks)
    return engine


def chain() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 30), nn.ReLU(), nn.Linear(30, 5)]
    model = nn.Sequential(*layers, *head)
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    return model.double(), torch.ones(1, 3, 6, 6, dtype=torch.float64)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.a = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.b = nn.Conv2d(32, 16, 3, padding=1, bias=False)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        x = x + self.b(self.depthwise(self.a(x).relu()).relu())
        return self.head(x.mean((2, 3)))


def residual() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    return Residual().double(), torch.ones(1, 3, 5, 5, dtype=torch.float64)


class Gated(nn.Module):
    """Squeeze and excite: the stand-in of the gate takes a mean over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(8, 40), nn.Linear(40, 40), nn.Linear(40, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return self.last(x * torch.sigmoid(self.gate(x)))


def gated() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(2)
    return Gated().double(), torch.ones(1, 8, dtype=torch.float64)


def wide() -> tuple[nn.Module, torch.Tensor]:
    """Images that fold, a pool, layers with more positions than units, a mean over all of them."""
    torch.manual_seed(3)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(12, 16, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    return model.double(), torch.ones(1, 3, 20, 20, dtype=torch.float64)


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize("loops", ["compiled", "not compiled"])
@pytest.mark.parametrize("network", [chain, residual, gated, wide])
@pytest.mark.parametrize("compression", [5, 30])
def test_masks_are_those_of_the_plain_engine(
    network, compression: float, loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loops == "compiled":
        pytest.importorskip("numba", reason="the extra `fast` is not installed")
    else:
        monkeypatch.setattr(compiled, "kernels", lambda: None)
    found, expected = pruned(network, compression, "fast"), plainly(network, compression)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def pruned(network, compression: float, engine: str) -> synflow.Masks:
    model, example = network()
    return synflow.prune(model, example, compression=compression, steps=40, guard=False, engine=engine)


@functools.cache
def plainly(network, compression: float) -> synflow.Masks:
    """The plain engine has no compiled loops: what it keeps is the same with and without them."""
    return pruned(network, compression, "plain")


@pytest.mark.usefixtures("everything")
def test_steps_show_the_whole_network() -> None:
    model, example = chain()
    shapes = {name: weight.shape for name, weight in synflow.prunable(model).items()}
    before = None
    for step in synflow.iterate(model, example, compression=40, steps=40):
        assert {name: mask.shape for name, mask in step.masks.items()} == shapes
        assert {name: score.shape for name, score in step.scores.items()} == shapes
        assert sum(int(mask.sum()) for mask in step.masks.values()) == step.kept
        if before is not None:
            assert all(bool((step.masks[name] <= before[name]).all()) for name in before)
            fresh = synflow.score(model, example, masks=before)
            scale = {name: float(fresh[name].sum() / step.scores[name].sum()) for name in fresh}
            assert all(math.log2(value) == pytest.approx(round(math.log2(value)), abs=1e-9) for value in scale.values())
        before = step.masks


@pytest.fixture
def unfed() -> tuple[FastEngine, dict[str, torch.Tensor], torch.Tensor]:
    """An engine with eight units that hear nothing, though what they send is kept: `idle` are those weights."""
    network = open_network(*chain())
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    masks["0.weight"][4:] = False
    idle = torch.zeros_like(masks["3.weight"])
    idle[:, 4:] = True
    with using(EVERYTHING_ON):
        return engine_for(network, masks), masks, idle


def test_weights_that_no_flow_passes_go_first(unfed) -> None:
    engine, masks, idle = unfed
    going = engine.lightest(engine.measure(), int(idle.sum()))
    assert (going.number, going.total) == (int(idle.sum()), 0.0)
    undo = engine.remove(going)
    assert engine.count == sum(int(mask.sum()) for mask in masks.values()) - int(idle.sum())
    left = engine.masks()
    assert torch.equal(left["3.weight"], masks["3.weight"] & ~idle)
    assert all(torch.equal(left[name], masks[name]) for name in masks if name != "3.weight")
    undo()
    assert all(torch.equal(engine.masks()[name], masks[name]) for name in masks)


def test_of_weights_that_no_flow_passes_the_later_ones_go(unfed) -> None:
    engine, masks, idle = unfed
    scores = engine.measure()
    going = engine.lightest(scores, 10)
    assert (going.number, going.total) == (10, 0.0)
    assert engine.leaves_a_path(going)
    assert engine.weigh(going, scores) == 0.0
    undo = engine.remove(going)
    left = engine.masks()
    assert engine.count == sum(int(mask.sum()) for mask in left.values())
    expected = masks["3.weight"].clone()
    expected.view(-1)[torch.nonzero(idle.view(-1))[-10:]] = False
    assert torch.equal(left["3.weight"], expected)
    undo()
    assert all(torch.equal(engine.masks()[name], masks[name]) for name in masks)


@pytest.mark.parametrize("share", [0.03, 0.6])
@pytest.mark.parametrize("zeros", [0, 1, 12])
@pytest.mark.parametrize("power", [1, 2])
def test_removals_can_be_undone(share: float, zeros: int, power: int) -> None:
    """Whether few go, which are listed, or many, which are marked; where zeros are kept, and weights went before.

    A tensor of twelve zero columns is zero everywhere and counts as ones.
    """
    model, example = chain()
    with torch.no_grad():
        model[3].weight[:, :zeros] = 0.0
    network = open_network(model, example)
    engine = engine_for(network, power=power)
    engine.remove(engine.lightest(engine.measure(), 300))
    masks, flow, left = engine.masks(), engine.measure().flow, engine.count
    before = {name: magnitude.clone() for name, magnitude in engine.magnitudes.items()}
    scores = engine.measure()
    going = engine.lightest(scores, int(share * network.size))
    undo = engine.remove(going)
    assert engine.count == left - going.number == sum(int(mask.sum()) for mask in engine.masks().values())
    assert zeros or engine.measure().flow.value < flow.value
    undo()
    assert engine.count == left
    assert all(torch.equal(engine.masks()[name], masks[name]) for name in masks)
    assert all(torch.equal(engine.magnitudes[name], before[name]) for name in before)
    assert engine.measure().flow.log2 == flow.log2


def test_a_removal_is_weighed_by_other_scores() -> None:
    network = open_network(*chain())
    engine = engine_for(network)
    scores = engine.measure()
    going = engine.lightest(scores, 500)
    assert engine.weigh(going, scores) == going.total
    doubled = engine_for(network, power=2).measure()
    undo = engine.remove(going)
    gone = {name: ~mask for name, mask in engine.masks().items()}
    undo()
    expected = sum(float(score[gone[name]].sum()) for name, score in doubled.whole().items())
    assert engine.weigh(going, doubled) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("compression", [1.25, 2.0, 20.0])
def test_weights_that_are_zero_are_kept_until_they_go(compression: float) -> None:
    """They score nothing, so they go first; as long as they are kept they count."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10))
    zero = torch.rand(20, 30) < 0.3
    with torch.no_grad():
        model[0].weight[zero] = 0.0
    assert set(engine_for(open_network(model, torch.ones(1, 30))).kept_zeros) == {"0.weight"}
    masks = synflow.prune(model, torch.ones(1, 30), compression=compression, steps=10)
    kept = round(800 / compression)
    assert sum(int(mask.sum()) for mask in masks.values()) == kept
    gone = 800 - kept
    assert int((masks["0.weight"] & zero).sum()) == max(int(zero.sum()) - gone, 0)


def test_a_layer_whose_flow_underflows_beside_another_is_alive() -> None:
    branch = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    for parameter in branch.parameters():
        nn.init.constant_(parameter, 2.0**-100)
    network = open_network(nn.Sequential(Add(branch, nn.Identity()), nn.Linear(4, 2)), torch.ones(1, 4))
    engine = engine_for(network)
    assert min(engine.measure().layer_flows.values()) == 0.0
    assert engine.live_layers() == set(network.weights)
