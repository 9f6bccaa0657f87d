"""Where cut weights lie in the whole tensor, whatever was cut how often."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from synflow.compaction.cut.surgery import cut
from synflow.engine.index_map import IndexMap, outside


def some(draw: Any, length: int) -> list[int]:
    """Some of so many indices, in order, at least one."""
    return sorted(draw(st.sets(st.integers(0, length - 1), min_size=1)))


@st.composite
def cuts(draw: Any, shape: tuple[int, ...], groups: int) -> dict[int, Any]:
    kept: dict[int, Any] = {}
    if draw(st.booleans()):
        each = shape[0] // groups
        lines = draw(st.permutations(range(each)))[: draw(st.integers(1, each))]
        kept[0] = [group * each + line for group in range(groups) for line in sorted(lines)]
    if len(shape) > 1 and draw(st.booleans()):
        if groups == 1:
            kept[1] = some(draw, shape[1])
        else:
            number = draw(st.integers(1, shape[1]))
            kept[1] = [sorted(draw(st.permutations(range(shape[1])))[:number]) for _ in range(groups)]
    return kept


@given(st.data(), st.integers(1, 3), st.lists(st.integers(1, 5), max_size=3))
def test_places_are_followed_through_cuts(data: Any, groups: int, more: list[int]) -> None:
    shape = (groups * data.draw(st.integers(1, 4)), *more)
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    positions, part = IndexMap.of(whole), whole
    for _ in range(3):
        kept = data.draw(cuts(tuple(part.shape), groups))
        mask = torch.rand(part.shape) < 0.6
        gone = outside(mask, kept)
        inside = cut(torch.arange(part.numel()).view(part.shape), kept).view(-1)
        assert set(gone.tolist()) == set(torch.nonzero(mask.view(-1)).view(-1).tolist()) - set(inside.tolist())
        assert torch.equal(positions.at(gone), part.reshape(-1)[gone])
        positions, part = positions.cut(kept), cut(part, kept)
        assert torch.equal(positions.flat().long(), part)


def test_lines_of_rows_go_with_their_rows() -> None:
    """Each group of rows has columns of its own; of each group one row goes afterwards."""
    whole = torch.arange(12).view(4, 3)
    kept: list[dict[int, Any]] = [{1: [[0, 1], [1, 2]]}, {0: [1, 3]}]
    positions = IndexMap.of(whole).cut(kept[0]).cut(kept[1])
    assert positions.flat().tolist() == cut(cut(whole, kept[0]), kept[1]).tolist() == [[3, 4], [10, 11]]
