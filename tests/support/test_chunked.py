"""Counts, sums and selections over many tensors in pieces, against sorting everything."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from synflow.support import chunked as streams
from synflow.support.chunked import count, count_true, kth_largest, lightest, total_score


@st.composite
def scored(draw):
    """Non-negative scores of several sizes and magnitudes, with zeros and ties, and candidates among them."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    spread = draw(st.sampled_from([0.0, 1.0, 30.0]))
    scores = {
        str(i): torch.exp(torch.randn(size, generator=generator, dtype=dtype) * spread) for i, size in enumerate(sizes)
    }
    for score in scores.values():
        score *= torch.rand(score.shape, generator=generator) > 0.2
    masks = {name: torch.rand(score.shape, generator=generator) > 0.3 for name, score in scores.items()}
    return scores, masks


def chosen(scores, masks):
    return np.sort(np.concatenate([scores[name][mask].double().numpy() for name, mask in masks.items()]))


@given(scored(), st.floats(0, 1.2))
def test_the_lightest_are_those_that_fit_in_the_budget(problem, share):
    scores, masks = problem
    values = chosen(scores, masks)
    running = np.cumsum(values)
    budget = share * (running[-1] if len(values) else 1.0)
    found = lightest(scores, masks, budget)
    slack = 1e-9 * (running[-1] if len(values) else 1.0)
    assert found >= np.searchsorted(running, budget - slack, "left")
    assert found <= np.searchsorted(running, budget + slack, "right")


def test_the_budget_itself_is_not_reached():
    scores, masks = {"a": torch.tensor([0.25, 0.25, 0.5])}, {"a": torch.ones(3, dtype=torch.bool)}
    assert [lightest(scores, masks, b) for b in (0.0, 0.25, 0.26, 0.5, 0.51, 1.0, 1.01)] == [0, 0, 1, 1, 2, 2, 3]
    zeros = {"a": torch.tensor([0.0, -0.0, 1.0])}
    assert lightest(zeros, masks, 1e-30) == 2
    assert lightest(zeros, {"a": torch.zeros(3, dtype=torch.bool)}, 1.0) == 0


@given(scored())
def test_sums_and_counts(problem):
    scores, masks = problem
    assert count(masks) == sum(int(mask.sum()) for mask in masks.values())
    assert total_score(scores, masks) == pytest.approx(math.fsum(chosen(scores, masks)), rel=1e-5, abs=1e-30)


@given(scored(), st.data())
def test_the_kth_largest_is_exact(problem, data):
    scores, masks = problem
    values = chosen(scores, masks)
    if len(values):
        k = data.draw(st.integers(1, len(values)))
        assert float(kth_largest(scores, masks, k, len(values))) == values[-k]


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "constant", "one layer above the other"])
def test_the_kth_largest_of_many_whatever_the_sample(monkeypatch, order):
    """With small pieces and a small sample, also where the sample says little about the order."""
    monkeypatch.setattr(streams, "PIECE", 64)
    monkeypatch.setattr(streams, "SAMPLE", 32)
    values = torch.rand(5000)
    if order == "ascending":
        values = values.sort()[0]
    elif order == "descending":
        values = values.sort(descending=True)[0]
    elif order == "constant":
        values = torch.ones(5000)
    scores = {"a": values[:1000].view(10, 100), "b": values[1000:]}
    if order == "one layer above the other":
        scores["b"] = scores["b"] * 1e6
    masks = {name: torch.rand(score.shape) > 0.5 for name, score in scores.items()}
    expected = chosen(scores, masks)
    for k in (1, 2, 17, len(expected) // 2, len(expected) - 1, len(expected)):
        assert float(kth_largest(scores, masks, k, len(expected))) == expected[-k]
    budget = expected.sum() / 3
    near = int(np.searchsorted(np.cumsum(expected), budget, "left"))
    assert abs(lightest(scores, masks, budget) - near) <= (1 if order == "constant" else 0)


def test_a_mask_of_which_one_element_stands_for_all_is_counted_without_being_read() -> None:
    for value in (True, False):
        mask = torch.tensor(value).expand(1 << 20, 1 << 20)
        assert count_true(mask) == (1 << 40) * value
    assert count_true(torch.tensor(True)) == 1
    assert count_true(torch.ones(0, 3, dtype=torch.bool)) == 0
