"""The lightest weights, found in blocks, are those that a sort of all scores finds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from synflow.engine.factored_gradient import FactoredGradient
from synflow.engine.scores import FactoredScores, fill
from synflow.engine.select_lightest import FastRemoval, lightest_weights
from synflow.engine.thresholds import Thresholds
from synflow.errors import SynflowError
from synflow.flow.measure import Measurement


def scored(
    scores: dict[str, Tensor], masks: dict[str, Tensor] | None = None, thresholds: Thresholds | None = None
) -> FactoredScores:
    """Given scores, as magnitudes with a gradient of one."""
    ones = {name: FactoredGradient(s.shape, dense=torch.ones_like(s)) for name, s in scores.items()}
    kept = {name: torch.ones_like(s, dtype=torch.bool) for name, s in scores.items()} if masks is None else masks
    return FactoredScores(Measurement(1.0, 0, {}), scores, kept, ones, thresholds or Thresholds())


def remove(removal: FastRemoval) -> None:
    for name, places in removal.gone.items():
        fill(removal.scores.magnitudes[name], places, 0.0)
        fill(removal.scores.masks[name], places, False)


def by_sorting(scores: dict[str, Tensor], masks: dict[str, Tensor], number: int) -> set[tuple[str, int]]:
    """The lightest first, and of equals those that come last."""
    entries = [
        (float(value), -order, -index, name)
        for order, name in enumerate(scores)
        for index, value in enumerate(scores[name].flatten().tolist())
        if masks[name].flatten()[index]
    ]
    return {(name, -index) for _, _, index, name in sorted(entries)[:number]}


def chosen(
    scores: dict[str, Tensor], masks: dict[str, Tensor], number: int, thresholds: Thresholds | None = None
) -> tuple[FastRemoval, set[tuple[str, int]]]:
    """What goes, by the masks and magnitudes that are left."""
    weights = scored({n: s.clone() for n, s in scores.items()}, {n: m.clone() for n, m in masks.items()}, thresholds)
    found = lightest_weights(weights, sum(int(mask.sum()) for mask in masks.values()), number)
    remove(found)
    gone = {name: masks[name] & ~weights.masks[name] for name in masks}
    for name in masks:
        stays = weights.masks[name]
        assert torch.equal(weights.magnitudes[name][stays], scores[name][stays])
        assert not weights.magnitudes[name][gone[name]].any()
    return found, {(name, int(i)) for name in gone for i in torch.nonzero(gone[name].flatten()).flatten()}


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 100), st.booleans(), st.booleans())
def test_as_by_sorting(seed: int, percent: int, ties: bool, small: bool) -> None:
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(1, 30)), int(rng.integers(1, 40))) for _ in range(3)]
    scores = {str(i): torch.from_numpy(rng.random(shape) ** 6).float() for i, shape in enumerate(shapes)}
    if ties:
        scores = {name: (s * 8).round() for name, s in scores.items()}
    masks = {name: torch.from_numpy(rng.random(s.shape) < 0.7) for name, s in scores.items()}
    total = sum(int(mask.sum()) for mask in masks.values())
    number = total * percent // 100
    found, gone = chosen(scores, masks, number, Thresholds(sample=16, block=64) if small else None)
    assert gone == by_sorting(scores, masks, number)
    assert found.number == number
    assert found.total == pytest.approx(sum(float(scores[n].flatten()[i]) for n, i in gone), rel=1e-6)


def test_many_are_not_listed() -> None:
    scores = {"a": torch.rand(300, 200), "b": torch.rand(70, 90)}
    masks = {name: torch.rand_like(s) < 0.8 for name, s in scores.items()}
    found, gone = chosen(scores, masks, 30_000)
    assert all(places.dtype == torch.bool for places in found.gone.values())
    assert gone == by_sorting(scores, masks, 30_000)
    found, _ = chosen(scores, masks, 3_000)
    assert sum(map(len, found.gone.values())) == 3_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("listed", [True, False])
def test_what_goes_becomes_zero_and_nothing_else(dtype: torch.dtype, listed: bool) -> None:
    torch.manual_seed(0)
    magnitudes = {"a": torch.rand(40, 30).to(dtype), "b": torch.rand(5, 8).to(dtype)}
    masks = {name: torch.rand(m.shape) < 0.8 for name, m in magnitudes.items()}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    ones = {name: FactoredGradient(m.shape, torch.ones(m.shape, dtype=wide)) for name, m in magnitudes.items()}
    for name, mask in masks.items():
        magnitudes[name].masked_fill_(~mask, 0.0)
    before, kept = {n: m.clone() for n, m in magnitudes.items()}, sum(int(m.sum()) for m in masks.values())
    held = FactoredScores(
        Measurement(1.0, 0, {}), magnitudes, masks, ones, Thresholds() if listed else Thresholds(list_most=0)
    )
    found = lightest_weights(held, kept, 60)
    assert all((places.dtype != torch.bool) == listed for places in found.gone.values())
    remove(found)
    assert sum(int(mask.sum()) for mask in masks.values()) == kept - 60
    for name, mask in masks.items():
        torch.testing.assert_close(magnitudes[name], before[name] * mask, rtol=0, atol=0)


@pytest.mark.parametrize("budget", [0.0, 0.005, 0.4, 2.0, 300.0])
def test_within_a_budget(budget: float) -> None:
    torch.manual_seed(0)
    scores = {"a": torch.rand(60, 50).double(), "b": torch.rand(30, 20).double()}
    ordered = torch.cat([s.flatten() for s in scores.values()]).sort().values
    affordable = int((ordered.cumsum(0) < budget).sum())
    for most in (5, 500, 3000):
        found = lightest_weights(scored(scores), len(ordered), most, budget)
        assert found.number == min(affordable, most)
        assert found.number == 0 or found.total < budget


def test_scores_that_overflow_name_their_tensor() -> None:
    with pytest.raises(SynflowError, match=r"a\.weight: 1 of 100 flow scores are not finite"):
        lightest_weights(scored({"a.weight": torch.rand(10, 10).index_fill(0, torch.tensor([3]), 1.0).mul(
            torch.where(torch.arange(100).view(10, 10) == 31, math.inf, 1.0)
        )}), 100, 3)  # fmt: skip


@pytest.mark.parametrize("first", [0, 450, 900])
@pytest.mark.parametrize("list_share", [0.0, 1.0])
def test_a_sample_that_misleads_costs_time_only(first: int, list_share: float) -> None:
    """Only light or only heavy weights were drawn, so that the bracket is too low or too high at first."""
    weights = scored({"a": torch.arange(1.0, 1001.0).view(25, 40)}, None, Thresholds(sample=32, list_share=list_share))
    weights = dataclasses.replace(weights, places={"a": torch.arange(first, first + 100)})
    found = lightest_weights(weights, 1000, 600)
    gone = fill(torch.zeros(25, 40, dtype=torch.bool), found.gone["a"], True)
    assert torch.equal(gone.view(-1), torch.arange(1000) < 600)
    assert (found.number, found.total) == (600, 600 * 601 / 2)


def test_scores_that_overflow_by_their_scale_are_not_ranked() -> None:
    scores = dataclasses.replace(scored({"a": torch.full((3, 4), 1e10)}), scales={"a": 1e30})
    with pytest.raises(SynflowError, match="a: 12 of 12 flow scores are not finite"):
        lightest_weights(scores, 12, 3)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_what_is_found_is_weighed_and_leaves_the_weights_as_they_are(share: float) -> None:
    scores = {"a": torch.rand(40, 30), "b": torch.rand(50, 7)}
    weights = scored({n: s.clone() for n, s in scores.items()})
    number = int(share * 1550)
    found = lightest_weights(weights, 1550, number)
    assert all(bool(mask.all()) for mask in weights.masks.values())
    assert all(torch.equal(weights.magnitudes[n], scores[n]) for n in scores)
    gone = {n: fill(torch.zeros_like(s, dtype=torch.bool), found.gone[n], True) for n, s in scores.items()}
    assert sum(int(mask.sum()) for mask in gone.values()) == number
    lost = sum(float(s[gone[n]].double().sum()) for n, s in scores.items())
    assert math.isclose(found.total, lost, rel_tol=1e-6)
    assert math.isclose(weights.total(found.gone), lost, rel_tol=1e-6)
    assert weights.total({}) == 0.0
