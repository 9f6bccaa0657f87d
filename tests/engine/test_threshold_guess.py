"""Guesses of the next edge, and that a wrong guess changes nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synflow.engine.threshold_guess import ABOVE, Trend

from synflow.engine.factored_gradient import Sensitivity
from synflow.engine.select_lightest import Scored, lightest_weights


def after(edges: list[float], flow: float = 1.0) -> Trend:
    trend = Trend()
    for edge in edges:
        trend.add(0.02, edge * flow, flow)
    return trend


def test_edges_that_move_evenly_are_guessed() -> None:
    assert after([8.0, 4.0, 2.0]).next(0.02, 1.0) == pytest.approx(ABOVE)
    assert after([8.0, 4.0, 2.0], flow=1e9).next(0.0201, 1e3) == pytest.approx(ABOVE * 1e3)


def test_a_guess_keeps_clear_of_how_wrong_it_was() -> None:
    bent = after([8.0, 4.0, 2.2]).next(0.02, 1.0)
    assert bent is not None
    assert bent > 2.2 * 2.2 / 4.0 * ABOVE * 1.1


@pytest.mark.parametrize("edges", [[], [1.0], [1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 0.0, 1.0]])
def test_nothing_is_guessed_from_little(edges: list[float]) -> None:
    assert after(edges).next(0.02, 1.0) is None


def test_nothing_is_guessed_for_another_share() -> None:
    assert after([1.0, 1.0, 1.0]).next(0.03, 1.0) is None
    trend = after([1.0, 1.0, 1.0])
    trend.add(0.04, 2.0, 1.0)
    assert trend.next(0.02, 1.0) is None


@given(st.floats(1e-6, 1e3), st.integers(0, 10**6))
def test_whatever_is_guessed_the_same_weights_go(edge: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(40, 50, generator=generator)

    def left(trend: Trend) -> torch.Tensor:
        mask = torch.ones(40, 50, dtype=torch.bool)
        ones = Sensitivity(mask.shape, dense=torch.ones(mask.shape))
        scored = Scored({"a": scores.clone()}, {"a": mask}, {"a": ones}, trend=trend)
        going = lightest_weights(scored, 2000, 40)
        assert going.total == pytest.approx(float(scores.flatten().sort().values[:40].sum()), rel=1e-5)
        scored.remove(going)
        return mask

    guessing = after([edge, edge, edge])
    assert guessing.next(0.02, 1.0) is not None
    assert torch.equal(left(guessing), left(Trend()))
    assert guessing._last[-1][1] == pytest.approx(math.log(float(scores.flatten().sort().values[39])), rel=1e-4)
