"""One pass over all scores: which lie in a bracket, how many lie below it, and what they sum to.

Scores are made a block at a time and thrown away again. Where numba is installed, scores of large networks on a
processor are bounded, made where they may be light, and kept in one compiled loop; elsewhere in several passes over
each block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..support.chunked import count_true, four_bytes_do
from .scores import HUGE, FactoredScores, as_array

# A thread searches this many weights before it takes the next ones, so that threads finish together.
CHUNK = 1 << 19
# Bounds of scores use a mean for each position of a kernel (49 for 7 x 7); kernels with more positions than this share
# one mean, so that the table of means stays small.
KINDS = 64
# Free entries beyond those expected: a compiled loop gives up when fewer than WIDE = 512 (kernels.py) are free.
ROOM = 1 << 10
# A tensor gets entries for this many times its share of the light weights, since shares differ between layers. Memory
# that is never touched costs nothing; if it is too little, the loop runs again with room for all.
SPARE = 6
# The limit of a scaled tensor is raised by this share before its scores are scaled, so that rounding loses none.
SLACK = 1e-5


class Piece(NamedTuple):
    """Scores in a bracket and their flat positions, of one tensor; a mask of what is below it, with number and sum."""

    name: str
    places: np.ndarray
    values: np.ndarray
    below: Tensor | None = None
    number: int = 0
    total: float = 0.0


def find_light(scores: FactoredScores, high: float, share: float) -> list[Piece]:
    """Kept weights that score no more than `high`, about a share of all."""
    if scores.loops is None:
        return find_between(scores, -math.inf, high)
    together = scores.loops.side_by_side
    lists = together([partial(_tasks, scores, name, high, share) for name in scores.magnitudes])
    found: list[Piece] = together([task for some in lists for task in some])
    return found


def find_between(scores: FactoredScores, low: float, high: float) -> list[Piece]:
    """Kept weights that score from `low` to `high`, and all that score less."""
    return [_in_blocks(scores, name, low, high) for name in scores.magnitudes]


def _in_blocks(scores: FactoredScores, name: str, low: float, high: float) -> Piece:
    """What lies in and below the bracket in one tensor, block by block.

    NumPy compares and gathers several times as fast as torch does on a processor; from other devices blocks are copied.
    """
    magnitude = scores.magnitudes[name]
    kind = np.int32 if four_bytes_do(magnitude) else np.int64
    places, values, sums, below = [np.zeros(0, kind)], [], [], None
    if low > -math.inf:
        below = torch.zeros(magnitude.shape, dtype=torch.bool, device=magnitude.device)
    for start, kept, block in scores.kept_blocks(name):
        flat = as_array(block)
        inside = np.less_equal(flat, flat.dtype.type(high))
        np.logical_and(inside, as_array(kept), out=inside)
        if below is not None:
            under = np.logical_and(inside, flat < flat.dtype.type(low))
            below.view(-1)[start : start + len(under)] = torch.from_numpy(under).to(below.device)
            sums.append(float(np.dot(flat, under.astype(flat.dtype))))
            np.logical_xor(inside, under, out=inside)
        here = np.flatnonzero(inside)
        places.append((here + start).astype(kind))
        values.append(flat.take(here))
    number = 0 if below is None else count_true(below)
    return Piece(name, np.concatenate(places), np.concatenate(values), below, number, math.fsum(sums))


def _tasks(scores: FactoredScores, name: str, high: float, share: float) -> list[Callable[[], Piece]]:
    """What threads have to do to look through one tensor."""
    pair = scores.pair(name) if name not in scores.masks else None
    bounds = None if pair is None else _bounds(scores, name, *pair)
    if pair is None or bounds is None:
        return [partial(_in_blocks, scores, name, -math.inf, high)]
    (left, seen), (sums, parts, tiny) = pair, bounds
    weight = scores.magnitudes[name].reshape(len(left), -1).numpy()
    index_kind = np.int32 if four_bytes_do(scores.magnitudes[name]) else np.int64
    kind, limit, scale = weight.dtype.type, high, scores.scale(name)
    if scale != 1.0:
        limit = min(high / scale * (1 + SLACK), float(np.finfo(kind).max))
    step = max(CHUNK // max(len(seen), 1), 1)

    def search(top: int) -> Piece:
        rows = slice(top, top + step)
        size = weight[rows].size
        # With room for what is expected, and again with room for all where that was too little.
        for room in (min(int(SPARE * share * size), size) + ROOM, size + ROOM):
            places, values = np.empty(room, index_kind), np.empty(room, kind)
            number = scores.loops.pick_product(
                weight[rows], left[rows], sums[rows], seen, parts, kind(limit), tiny, name in scores.roots,
                places, values, top * len(seen),
            )  # fmt: skip
            if number >= 0:
                break
        places, values = places[:number], values[:number]
        if scale != 1.0:
            values = values * kind(scale)
            places, values = places[values <= high], values[values <= high]
        return Piece(name, places, values)

    return [partial(search, top) for top in range(0, len(weight), step)]


def _bounds(
    scores: FactoredScores, name: str, left: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Any] | None:
    """Lower bounds of a gradient, by row and by column; None where a score might overflow."""
    kinds = scores.gradients[name].shape[2:].numel()
    if kinds > KINDS:
        kinds = 1
    sums, parts = np.empty((len(left), kinds), left.dtype), np.empty(len(seen), left.dtype)
    # Numbers below this are not divided by, so that reciprocals stay far below the largest float.
    tiny = left.dtype.type(np.finfo(left.dtype).tiny * 1e8)
    most, least = scores.loops.lower_bounds(left, seen, parts, sums, tiny)
    # Not a number fails both.
    return (sums, parts, tiny) if most * scores.largest_magnitude(name) < HUGE and least >= 0 else None
