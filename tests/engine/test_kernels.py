"""Compiled loops find what passes over blocks find, and the bounds that they go by hold."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import synflow
from synflow.engine import candidate_passes
from synflow.engine.factored_gradient import FactoredGradient, Use
from synflow.engine.scores import FactoredScores, fill
from synflow.engine.select_lightest import FastRemoval, lightest_weights
from synflow.engine.thresholds import Thresholds
from synflow.flow.measure import Measurement

pytest.importorskip("numba", reason="the extra `fast` is not installed")

from synflow.engine import kernels

FLOW = Measurement(1.0, 0, {})


def remove(removal: FastRemoval) -> None:
    for name, places in removal.gone.items():
        fill(removal.scores.magnitudes[name], places, 0.0)
        if name in removal.scores.masks:
            fill(removal.scores.masks[name], places, False)


def network(rng: np.random.Generator, dtype: torch.dtype, kinds: list[str]) -> FactoredScores:
    """Tensors whose gradients are held whole, are one product, two, or both; some are those of convolutions."""
    magnitudes, gradients = {}, {}
    for index, kind in enumerate(kinds):
        rows, columns, kernel = (
            int(rng.integers(1, 40)),
            int(rng.integers(1, 700)),
            [(), (3, 3), (9, 9)][rng.integers(3)],
        )
        if kernel:
            columns = max(columns // math.prod(kernel), 1)
        shape, name = torch.Size([rows, columns, *kernel]), str(index)
        columns *= math.prod(kernel)
        magnitudes[name] = torch.from_numpy((1.0 - rng.random(shape)) * (rng.random(shape) < 0.7)).to(dtype)
        gradient = FactoredGradient(shape)
        if "dense" in kind:
            gradient.add_dense(torch.from_numpy(rng.random(shape)).to(dtype))
        for _ in range(kind.count("product")):
            inner = int(rng.integers(1, 20))
            left, right = rng.random((rows, inner)), rng.random((inner, columns))
            left, right = (part * (rng.random(part.shape) < rng.choice([0.3, 1.0])) for part in (left, right))
            gradient.uses.append(Use(torch.from_numpy(left).to(dtype), torch.from_numpy(right).to(dtype)))
        gradients[name] = gradient
    return FactoredScores(FLOW, magnitudes, {}, gradients, Thresholds())


KINDS = st.lists(
    st.sampled_from(["dense", "product", "product product", "dense product", "none"]), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), KINDS, st.sampled_from([torch.float32, torch.float64]), st.floats(0.0, 1.0))
def test_light_weights_are_found(seed: int, kinds: list[str], dtype: torch.dtype, part: float) -> None:
    scored = network(np.random.default_rng(seed), dtype, kinds)
    every = np.concatenate([score[scored.kept(name)].numpy() for name, score in scored.whole().items()])
    high = float(np.quantile(every, part)) if len(every) else 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_passes, "CHUNK", 1 << 11)
        expected = candidate_passes.find_light(scored, high * 1.0001, 0.1)
        # Nothing is expected: rooms have to grow.
        found = candidate_passes.find_light(dataclasses.replace(scored, loops=kernels), high * 1.0001, 0.0)

    def listed(pieces: list[candidate_passes.Piece], name: str) -> np.ndarray:
        """The scores that were found of a tensor, each at its place; nan where none was."""
        values = np.full(scored.magnitudes[name].numel(), math.nan)
        for piece in (piece for piece in pieces if piece.name == name):
            places = np.asarray(piece.places)
            assert len(places) == len(piece.values) == len(np.unique(places))
            assert not np.isnan(piece.values).any()
            assert np.isnan(values[places]).all(), "found twice"
            values[places] = np.asarray(piece.values)
        return values

    assert {piece.name for piece in (*expected, *found)} <= scored.magnitudes.keys()
    rounding = 1e-5 if dtype == torch.float32 else 1e-12
    for name in scored.magnitudes:
        wanted, got = listed(expected, name), listed(found, name)
        missed = np.isnan(wanted) != np.isnan(got)  # only what lies at the limit may differ, by rounding
        at_limit = np.where(np.isnan(wanted), got, wanted)[missed]
        assert (np.abs(at_limit - high * 1.0001) <= rounding * high).all()
        both = ~np.isnan(wanted) & ~np.isnan(got)
        np.testing.assert_allclose(got[both], wanted[both], rtol=rounding, atol=1e-30)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), KINDS, st.integers(1, 12))
def test_the_same_weights_go(seed: int, kinds: list[str], percent: int) -> None:
    def left(loops: Any) -> tuple[Any, FactoredScores]:
        scored = dataclasses.replace(network(np.random.default_rng(seed), torch.float64, kinds), loops=loops)
        total = sum(int(scored.kept(name).sum()) for name in scored.magnitudes)
        going = lightest_weights(scored, total, total * percent // 100)
        remove(going)
        return going, scored

    (slow, expected), (fast, found) = left(None), left(kernels)
    assert fast.number == slow.number
    assert fast.total == pytest.approx(slow.total, rel=1e-10)
    for name in expected.magnitudes:
        assert torch.equal(found.magnitudes[name], expected.magnitudes[name])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([np.float32, np.float64]), st.sampled_from([1, 9]))
def test_no_product_is_below_its_bound(seed: int, kind: Any, kinds: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns, inner = int(rng.integers(1, 30)), kinds * int(rng.integers(1, 30)), int(rng.integers(1, 70))
    left, seen = (10.0 ** rng.uniform(-6, 6, (length, inner)) for length in (rows, columns))
    left, seen = ((part * (rng.random(part.shape) < 0.8)).astype(kind) for part in (left, seen))
    sums, parts = np.empty((rows, kinds), kind), np.empty(columns, kind)
    most, least = kernels.lower_bounds(left, seen, parts, sums, kind(np.finfo(kind).tiny * 1e8))
    product = left.astype(np.float64) @ seen.T.astype(np.float64)
    bounds = np.tile(sums.astype(np.float64), (1, columns // kinds)) * parts
    assert (bounds <= product * (1 + kernels.CLOSE)).all()
    assert product.max() <= most * (1 + 1e-5)
    assert least == 0


def test_bounds_of_equal_columns_are_close() -> None:
    left, seen = np.random.default_rng(0).random((5, 8)), np.tile(np.random.default_rng(1).random((9, 8)), (4, 1))
    sums, parts = np.empty((5, 9)), np.empty(36)
    kernels.lower_bounds(left, seen, parts, sums, 1e-300)
    assert np.allclose(np.tile(sums, (1, 4)) * parts, left @ seen.T, rtol=1e-12)


def one_product(left: list[list[float]], right: list[list[float]], **how: Any) -> FactoredScores:
    """Weights that are all one, in double precision, with a gradient that is one product."""
    use = Use(torch.tensor(left, dtype=torch.float64), torch.tensor(right, dtype=torch.float64))
    shape = torch.Size([len(use.left), use.right.shape[1]])
    weights, gradient = torch.ones(shape, dtype=torch.float64), FactoredGradient(shape, uses=[use])
    return FactoredScores(FLOW, {"a": weights}, {}, {"a": gradient}, Thresholds(), loops=kernels, **how)


def test_negative_factors_have_no_bounds() -> None:
    scored = one_product([[1.0, -1.0]], [[4.0, 4.0], [1.0, 3.75]])
    (piece,) = candidate_passes.find_light(scored, 0.5, 0.1)
    assert (piece.places.tolist(), piece.values.tolist()) == ([1], [0.25])


def test_the_limit_of_scaled_scores_neither_loses_nor_adds_any() -> None:
    above = 1.0 + candidate_passes.SLACK / 10
    scored = one_product([[1.0]], [[0.5, 1.0, above, 1.0, 2.0]], scales={"a": 3.0})
    (piece,) = candidate_passes.find_light(scored, 3.0, 0.1)
    assert (piece.places.tolist(), piece.values.tolist()) == ([0, 1, 3], [1.5, 3.0, 3.0])


@pytest.mark.parametrize("unit", [2.0**-40, 1.0, 2.0**40])
def test_light_weights_are_found_by_the_root_of_their_gradient(unit: float) -> None:
    scored = one_product([[4.0 * unit**2]], [[25.0, 1.0, 16.0, 4.0, 9.0]], roots=frozenset("a"))
    (piece,) = candidate_passes.find_light(scored, 8.0 * unit, 0.1)
    assert (piece.places.tolist(), (piece.values / unit).tolist()) == ([1, 2, 3, 4], [2.0, 8.0, 4.0, 6.0])


def test_zeros_that_are_kept_are_found_by_their_masks() -> None:
    shape = torch.Size([2, 3])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    ones = FactoredGradient(shape, uses=[Use(torch.ones(2, 1), torch.ones(1, 3))])
    weights = torch.tensor([[0.0, 5.0, 0.0], [1.0, 0.0, 2.0]])
    scored = FactoredScores(FLOW, {"a": weights}, {"a": mask}, {"a": ones}, Thresholds(), loops=kernels)
    remove(lightest_weights(scored, 5, 3))
    assert mask.tolist() == [[False, True, False], [False, False, True]]
    assert weights.tolist() == [[0.0, 5.0, 0.0], [0.0, 0.0, 2.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_without(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1100, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 100)).to(dtype)
    masks = synflow.prune(model, torch.ones(1, 1100, dtype=dtype), compression=4, steps=20)
    assert sum(int(mask.sum()) for mask in masks.values()) == 1_200_000 // 4


def test_of_equals_the_last_ones_go() -> None:
    shape = torch.Size([37, 50])
    ones = FactoredGradient(shape, uses=[Use(torch.ones(37, 1), torch.ones(1, 50))])
    scored = FactoredScores(FLOW, {"a": torch.ones(shape)}, {}, {"a": ones}, Thresholds(), loops=kernels)
    remove(lightest_weights(scored, 1850, 123))
    mask = scored.kept("a")
    assert mask.view(-1)[: 1850 - 123].all()
    assert not mask.view(-1)[1850 - 123 :].any()


def test_scores_that_may_overflow_are_looked_at() -> None:
    shape = torch.Size([4, 4])
    gradient = FactoredGradient(shape, uses=[Use(torch.full((4, 1), 1e30), torch.full((1, 4), 1e30))])
    scored = FactoredScores(FLOW, {"a": torch.ones(shape)}, {}, {"a": gradient}, Thresholds(), loops=kernels)
    with pytest.raises(Exception, match="16 of 16 flow scores are not finite"):
        candidate_passes.find_light(scored, 1.0, 0.1)


def test_errors_in_a_thread_reach_the_caller() -> None:
    def fails() -> None:
        raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        kernels.side_by_side([fails, fails, fails])
    assert kernels.side_by_side([lambda n=n: n * n for n in range(20)]) == [n * n for n in range(20)]
