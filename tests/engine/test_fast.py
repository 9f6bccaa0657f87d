"""Going on with the compacted network gives the masks of the whole one."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn

import synflow
from synflow.engine import candidate_passes as picking
from synflow.engine import fast as survivors
from synflow.engine.fast import Survivors
from synflow.network.private_copy import open_network
from synflow.pruning.schedules import exponential
from synflow.support.ranking import keep_best


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut down as often as possible, however small the network."""
    monkeypatch.setattr(survivors, "SMALL", 0)
    monkeypatch.setattr(survivors, "COST", 0)
    for share in ("LEFT", "GAIN", "WORTH"):
        monkeypatch.setattr(survivors, share, 0.99)


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
    """Squeeze and excite: the stand-in of the gate takes a mean over channels, so cutting them changes the flow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(8, 40), nn.Linear(40, 40), nn.Linear(40, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return self.last(x * torch.sigmoid(self.gate(x)))


def gated() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(2)
    return Gated().double(), torch.ones(1, 8, dtype=torch.float64)


def plainly(model: nn.Module, example: torch.Tensor, keep: int, steps: int) -> dict[str, torch.Tensor]:
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in synflow.prunable(model).items()}
    total = sum(mask.numel() for mask in masks.values())
    for step in range(1, steps + 1):
        scores = synflow.score(model, example, masks=masks)
        masks = keep_best(scores, masks, round(total * exponential(step, steps, keep / total)))
    return masks


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


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("loops", ["compiled", "not compiled"])
@pytest.mark.parametrize("network", [chain, residual, gated, wide])
@pytest.mark.parametrize("compression", [5, 30])
def test_masks_are_those_of_the_whole_network(
    network, compression: float, loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loops == "compiled":
        pytest.importorskip("numba", reason="the extra `fast` is not installed")
        monkeypatch.setattr(picking, "LARGE", 0)
    model, example = network()
    masks = synflow.prune(model, example, compression=compression, steps=40, guard=False)
    slow = plainly(model, example, masks.about["kept"], 40)
    for name in slow:
        assert torch.equal(masks[name], slow[name]), name


@pytest.mark.usefixtures("eager")
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


@pytest.mark.usefixtures("eager")
def test_the_network_held_becomes_smaller() -> None:
    model, example = chain()
    network = open_network(model, example)
    masks = synflow.prune(model, example, compression=60, steps=60)
    left = Survivors(network, {name: torch.ones_like(mask) for name, mask in masks.items()}, 1)
    left.replace(masks)
    left.shrink()
    held = sum(magnitude.numel() for magnitude in left.magnitudes.values())
    assert held < 0.3 * network.size
    assert left.count == sum(int(mask.sum()) for mask in masks.values())
    whole = left.whole_masks()
    assert all(torch.equal(whole[name], masks[name]) for name in masks)
    flow, _ = left.measure()
    assert flow.log2 == pytest.approx(synflow.certify(model, masks, example).flow_log2, abs=1e-9)


@pytest.mark.usefixtures("eager")
def test_idle_weights_stay_counted_and_go_first() -> None:
    model, example = chain()
    network = open_network(model, example)
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    masks["0.weight"][4:] = False  # eight units hear nothing, but what they send is kept
    left = Survivors(network, {name: torch.ones_like(mask) for name, mask in masks.items()}, 1)
    left.replace(masks)
    left.shrink()
    assert left.idle == 24 * 8 * 9
    assert all(torch.equal(left.whole_masks()[name], masks[name]) for name in masks)
    left.drop(survivors.Lightest(0, 0.0, pieces=[]), left.measure()[1])
    assert left.idle == 0
    assert left.count == sum(int(mask.sum()) for mask in masks.values()) - 24 * 8 * 9
    assert not left.whole_masks()["3.weight"][:, 4:].any()


@pytest.mark.usefixtures("eager")
def test_a_network_that_cannot_be_followed_stays_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no tape")

    monkeypatch.setattr("synflow.compaction.cut.while_pruning.outline", refuse)
    model, example = chain()
    with caplog.at_level(logging.DEBUG, logger="synflow"):
        masks = synflow.prune(model, example, compression=30, steps=20)
    assert "is not cut down while it is pruned: RuntimeError: no tape" in caplog.text
    slow = plainly(model, example, masks.about["kept"], 20)
    assert all(torch.equal(masks[name], slow[name]) for name in slow)


@pytest.mark.usefixtures("eager")
def test_a_flow_that_changes_stops_the_cutting(caplog: pytest.LogCaptureFixture) -> None:
    model, example = gated()
    with caplog.at_level(logging.DEBUG, logger="synflow"):
        synflow.prune(model, example, compression=30, steps=40)
    assert "its flow changes" in caplog.text


@pytest.mark.parametrize("compression", [1.25, 2.0, 20.0])
def test_weights_that_are_zero_are_kept_until_they_go(compression: float) -> None:
    """They score nothing, so they go first; as long as they are kept they count."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10))
    zero = torch.rand(20, 30) < 0.3
    with torch.no_grad():
        model[0].weight[zero] = 0.0
    network = open_network(model, torch.ones(1, 30))
    left = Survivors(network, {name: torch.ones_like(w, dtype=torch.bool) for name, w in network.weights.items()}, 1)
    assert set(left.masks) == {"0.weight"}
    masks = synflow.prune(model, torch.ones(1, 30), compression=compression, steps=10)
    kept = round(800 / compression)
    assert sum(int(mask.sum()) for mask in masks.values()) == kept
    gone = 800 - kept
    assert int((masks["0.weight"] & zero).sum()) == max(int(zero.sum()) - gone, 0)


@pytest.mark.usefixtures("eager")
def test_no_cut_is_made_that_would_not_pay() -> None:
    model, example = chain()
    sizes = []
    for ahead in (3.0, math.inf):
        network = open_network(model, example)
        masks = synflow.prune(model, example, compression=10, steps=20)
        left = Survivors(network, dict(masks), 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(survivors, "COST", 14)
            left._held = math.inf
            left.shrink(ahead)
        sizes.append(left.small.size)
    assert sizes[0] == network.size > sizes[1]
