"""Light weights that are looked for while others are still measured are the ones that are found afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from synflow.engine.concurrent_search import Early
from synflow.engine.threshold_guess import Trend
from torch import nn

import synflow
from synflow.engine import candidate_passes as picking
from synflow.engine import concurrent_search as early
from synflow.engine import fast as survivors
from synflow.engine.factored_gradient import Sensitivity, Use
from synflow.engine.select_lightest import Scored, lightest_weights

pytest.importorskip("numba", reason="the extra `fast` is not installed")

from synflow.engine import kernels


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Early and compiled however small the network; what searches found."""
    found: list[Any] = []
    plain = Early.finish

    def finish(self: Early) -> Any:
        result = plain(self)
        found.append(result)
        return result

    monkeypatch.setattr(picking, "LARGE", 0)
    monkeypatch.setattr(survivors, "SMALL", 0)
    monkeypatch.setattr(survivors, "BUSY", 1e9)
    monkeypatch.setattr(Early, "finish", finish)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return found


def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    model = nn.Sequential(*layers).double()
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    return model, torch.ones(1, 3, 16, 16, dtype=torch.float64)


def test_the_same_weights_are_kept(eager: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = network()
    masks = synflow.prune(model, example, compression=20, steps=60)
    assert sum(found is not None for found in eager) > 40
    monkeypatch.setattr(survivors, "BUSY", 0)
    eager.clear()
    expected = synflow.prune(model, example, compression=20, steps=60)
    assert not eager
    assert all(torch.equal(masks[name], expected[name]) for name in expected)


def scored(edge: float) -> Scored:
    trend = Trend()
    for _ in range(3):
        trend.add(0.1, edge, 1.0)
    return Scored({"a": torch.rand(30, 20), "b": torch.rand(20, 10)}, {}, {}, trend=trend, compiled=kernels)


def told(search: Early, weights: Scored) -> None:
    tell = search.begin(1.0)
    assert tell is not None
    for name, magnitude in weights.magnitudes.items():
        rows, columns = magnitude.shape
        uses = [Use(torch.rand(rows, 2) + 1, torch.rand(2, columns) + 1)]
        tell(name, Sensitivity(magnitude.shape, uses=uses))


def test_what_is_found_is_what_a_pass_finds() -> None:
    torch.manual_seed(0)
    weights = scored(0.3)
    search = Early(weights, 0.1)
    told(search, weights)
    found = search.finish()
    assert found is not None
    expected = picking.find_light(weights, search._high, 0.1)
    everything = [
        sorted((piece.name, int(place)) for piece in result.pieces for place in piece.places)
        for result in (found, expected)
    ]
    assert everything[0] == everything[1] != []


def test_too_few_are_looked_for_again() -> None:
    torch.manual_seed(0)
    weights = scored(1e-6)
    search = Early(weights, 0.1)
    told(search, weights)
    found = search.finish()
    assert found is not None
    assert sum(len(piece.places) for piece in found.pieces) == 0
    assert lightest_weights(Scored(weights.magnitudes, {}, weights.sensitivities, found=found), 800, 80).number == 80


def test_errors_of_the_other_thread_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("in a thread")

    monkeypatch.setattr(early, "found_in", fails)
    weights = scored(0.3)
    search = Early(weights, 0.1)
    told(search, weights)
    with pytest.raises(ValueError, match="in a thread"):
        search.finish()


def test_a_search_that_is_given_up_leaves_no_thread_at_work() -> None:
    weights = scored(0.3)
    search = Early(weights, 0.1)
    assert search.finish() is None  # never begun
    told(search, weights)
    other = search._other
    assert other is not None
    search.stop()
    assert other.done()
    search.stop()  # again is harmless


def test_without_a_trend_nothing_is_searched() -> None:
    weights = Scored({"a": torch.rand(3, 2)}, {}, {}, compiled=kernels)
    search = Early(weights, 0.1)
    assert search.begin(1.0) is None
    assert search.finish() is None
