"""The lightest weights, found in blocks, are those that a sort of all scores finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from synflow import lightest
from synflow.errors import SynflowError
from synflow.lightest import Scored, lightest_weights
from synflow.sensitivity import Sensitivity


def scored(scores: dict[str, Tensor], masks: dict[str, Tensor] | None = None) -> Scored:
    """Given scores, as magnitudes with a gradient of one."""
    ones = {name: Sensitivity(s.shape, dense=torch.ones_like(s)) for name, s in scores.items()}
    kept = {name: torch.ones_like(s, dtype=torch.bool) for name, s in scores.items()} if masks is None else masks
    return Scored(scores, kept, ones)


def by_sorting(scores: dict[str, Tensor], masks: dict[str, Tensor], number: int) -> set[tuple[str, int]]:
    """The lightest first, and of equals those that come last."""
    entries = [
        (float(value), -order, -index, name)
        for order, name in enumerate(scores)
        for index, value in enumerate(scores[name].flatten().tolist())
        if masks[name].flatten()[index]
    ]
    return {(name, -index) for _, _, index, name in sorted(entries)[:number]}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.booleans())
def test_as_by_sorting(seed: int, parts: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(1, 30)), int(rng.integers(1, 40))) for _ in range(3)]
    scores = {str(i): torch.from_numpy(rng.random(shape) ** 6).float() for i, shape in enumerate(shapes)}
    if ties:
        scores = {name: (s * 8).round() for name, s in scores.items()}
    masks = {name: torch.from_numpy(rng.random(s.shape) < 0.7) for name, s in scores.items()}
    total = sum(int(mask.sum()) for mask in masks.values())
    number = total * parts // 200
    found = lightest_weights(scored(scores, masks), total, number)
    assert found is not None
    chosen = {(name, int(i)) for name, places in found.positions.items() for i in places}
    assert chosen == by_sorting(scores, masks, number)
    assert found.number == number
    assert found.total == pytest.approx(sum(float(scores[n].flatten()[i]) for n, i in chosen))


def test_a_sample_that_misleads_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightest, "SAMPLE", 8)
    monkeypatch.setattr(lightest, "BLOCK", 64)
    scores = {"a": torch.rand(40, 50), "b": torch.rand(7, 90)}
    masks = {name: torch.rand_like(s) < 0.8 for name, s in scores.items()}
    total = sum(int(mask.sum()) for mask in masks.values())
    for number in (0, 1, 2, 100, total // 7):
        found = lightest_weights(scored(scores, masks), total, number)
        assert found is not None
        assert {(n, int(i)) for n, p in found.positions.items() for i in p} == by_sorting(scores, masks, number)


@pytest.mark.parametrize("budget", [0.0, 0.005, 0.4, 2.0])
def test_within_a_budget(budget: float) -> None:
    torch.manual_seed(0)
    scores = {"a": torch.rand(60, 50).double(), "b": torch.rand(30, 20).double()}
    ordered = torch.cat([s.flatten() for s in scores.values()]).sort().values
    affordable = int((ordered.cumsum(0) < budget).sum())
    for most in (5, 500):
        found = lightest_weights(scored(scores), len(ordered), most, budget)
        assert found is not None
        assert found.number == min(affordable, most)
        assert found.number == 0 or found.total < budget


def test_a_large_part_is_left_to_others() -> None:
    scores = {"a": torch.rand(10, 10)}
    assert lightest_weights(scored(scores), 100, 60) is None
    assert lightest_weights(scored(scores), 100, 60, budget=math.inf) is None


def test_scores_that_overflow_name_their_tensor() -> None:
    with pytest.raises(SynflowError, match=r"a\.weight: 1 of 100 flow scores are not finite"):
        lightest_weights(scored({"a.weight": torch.rand(10, 10).index_fill(0, torch.tensor([3]), 1.0).mul(
            torch.where(torch.arange(100).view(10, 10) == 31, math.inf, 1.0)
        )}), 100, 3)  # fmt: skip
