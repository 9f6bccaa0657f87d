"""Compiled loops find what passes over blocks find."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synflow import picking
from synflow.lightest import Scored, lightest_weights
from synflow.sensitivity import Sensitivity, Use

pytest.importorskip("numba", reason="the extra `fast` is not installed")


def network(rng: np.random.Generator, dtype: torch.dtype, kinds: list[str]) -> Scored:
    """Tensors whose gradients are held whole, are one product, two, or both."""
    magnitudes, masks, sensitivities = {}, {}, {}
    for index, kind in enumerate(kinds):
        rows, columns = int(rng.integers(1, 40)), int(rng.integers(1, 700))
        shape, name = torch.Size([rows, columns]), str(index)
        masks[name] = torch.from_numpy(rng.random(shape) < 0.7)
        magnitudes[name] = torch.from_numpy(rng.random(shape)).to(dtype) * masks[name]
        sensitivity = Sensitivity(shape)
        if "dense" in kind:
            sensitivity.add_dense(torch.from_numpy(rng.random(shape)).to(dtype))
        for _ in range(kind.count("product")):
            inner = int(rng.integers(1, 20))
            left, right = rng.random((rows, inner)), rng.random((inner, columns))
            sensitivity.uses.append(Use(torch.from_numpy(left).to(dtype), torch.from_numpy(right).to(dtype)))
        sensitivities[name] = sensitivity
    return Scored(magnitudes, masks, sensitivities)


KINDS = st.lists(
    st.sampled_from(["dense", "product", "product product", "dense product", "none"]), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), KINDS, st.sampled_from([torch.float32, torch.float64]), st.floats(0.0, 1.0))
def test_light_weights_are_found(seed: int, kinds: list[str], dtype: torch.dtype, part: float) -> None:
    scored = network(np.random.default_rng(seed), dtype, kinds)
    every = np.concatenate([score[scored.masks[name]].numpy() for name, score in scored.whole().items()])
    high = float(np.quantile(every, part)) if len(every) else 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picking, "CHUNK", 1 << 11)
        patch.setattr(picking, "LARGE", 1 << 40)
        expected = picking.find_light(scored, high * 1.0001, 0.1)
        patch.setattr(picking, "LARGE", 0)
        found = picking.find_light(scored, high * 1.0001, 0.0)  # nothing is expected: rooms have to grow

    def listed(pieces: list[picking.Piece]) -> dict[tuple[str, int], float]:
        flat = [(p.name, int(place), float(v)) for p in pieces for place, v in zip(p.places, p.values, strict=True)]
        assert len({(name, place) for name, place, _ in flat}) == len(flat)
        return {(name, place): value for name, place, value in flat}

    wanted, got = listed(expected.pieces), listed(found.pieces)
    near = 1e-5 * high if dtype == torch.float32 else 1e-12 * high
    for entry in wanted.keys() ^ got.keys():  # only what lies at the limit may differ, by rounding
        assert abs(wanted.get(entry, got.get(entry, math.nan)) - high * 1.0001) <= near
    for entry in wanted.keys() & got.keys():
        assert got[entry] == pytest.approx(wanted[entry], rel=1e-5 if dtype == torch.float32 else 1e-12, abs=1e-30)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), KINDS, st.integers(1, 12))
def test_the_same_weights_go(seed: int, kinds: list[str], percent: int) -> None:
    def left(large: int) -> tuple[Any, Scored]:
        scored = network(np.random.default_rng(seed), torch.float64, kinds)
        total = sum(int(mask.sum()) for mask in scored.masks.values())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(picking, "LARGE", large)
            going = lightest_weights(scored, total, total * percent // 100)
            scored.remove(going)
        return going, scored

    (slow, expected), (fast, found) = left(1 << 40), left(0)
    assert fast.number == slow.number
    assert fast.total == pytest.approx(slow.total, rel=1e-10)
    for name in expected.masks:
        assert torch.equal(found.masks[name], expected.masks[name])
        assert torch.equal(found.magnitudes[name], expected.magnitudes[name])


def test_of_equals_the_last_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picking, "LARGE", 0)
    shape = torch.Size([37, 50])
    ones = Sensitivity(shape, uses=[Use(torch.ones(37, 1), torch.ones(1, 50))])
    mask = torch.ones(shape, dtype=torch.bool)
    scored = Scored({"a": torch.ones(shape)}, {"a": mask}, {"a": ones})
    scored.remove(lightest_weights(scored, 1850, 123))
    assert mask.view(-1)[: 1850 - 123].all()
    assert not mask.view(-1)[1850 - 123 :].any()


def test_scores_that_may_overflow_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picking, "LARGE", 0)
    shape = torch.Size([4, 4])
    sensitivity = Sensitivity(shape, uses=[Use(torch.full((4, 1), 1e30), torch.full((1, 4), 1e30))])
    scored = Scored({"a": torch.ones(shape)}, {"a": torch.ones(shape, dtype=torch.bool)}, {"a": sensitivity})
    with pytest.raises(Exception, match="16 of 16 flow scores are not finite"):
        picking.find_light(scored, 1.0, 0.1)


def test_errors_in_a_thread_reach_the_caller() -> None:
    from synflow.kernels import side_by_side

    def fails() -> None:
        raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        side_by_side([fails, fails, fails])
    assert side_by_side([lambda n=n: n * n for n in range(20)]) == [n * n for n in range(20)]
