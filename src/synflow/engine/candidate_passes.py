"""One pass over all scores: which lie in a bracket, how many lie below it, and what they sum to.

Scores are made a block at a time and thrown away again. Where numba is installed, scores of large networks on a
processor are bounded, made where they may be light, and kept in one compiled loop; elsewhere in several passes over
each block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..support.chunked import four_bytes_do
from .scores import HUGE, FactoredScores, as_array

# Fewer weights than this are searched by one thread: waking others takes longer.
SHORT = 1 << 15
# A thread searches this many weights before it takes the next ones, so that threads finish together.
CHUNK = 1 << 19
# Convolution kernels with more weights share one mean in the bounds of their scores.
KINDS = 64
# Compiled loops may write this many entries beyond those they keep.
ROOM = 1 << 10
# A tensor may hold this many times its share of the light weights; untouched room takes no memory.
SPARE = 6
# The limit of a scaled tensor is raised by this share before its scores are scaled, so that rounding loses none.
SLACK = 1e-5


class Piece(NamedTuple):
    """Scores that were found in a tensor, and their flat positions (of no use where they were not asked for)."""

    name: str
    places: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Found:
    """What one pass finds: how many weights lie below a bracket and their sum; the scores inside it."""

    below: int
    sum_below: float
    pieces: list[Piece]


def find_light(scores: FactoredScores, high: float, share: float) -> Found:
    """Kept weights that score no more than `high`, about a share of all, and where they are."""
    if scores.loops is None:
        return Found(0, 0.0, [_listed(scores, name, high) for name in scores.magnitudes])
    together, short = scores.loops.side_by_side, scores.size < SHORT
    lists = together([partial(_tasks, scores, name, high, share) for name in scores.magnitudes], short)
    return Found(0, 0.0, together([task for some in lists for task in some], short))


def find_between(scores: FactoredScores, low: float, high: float) -> Found:
    """Kept weights that score from `low` to `high`, and how many score less; not where they are."""
    below, sums, pieces = 0, [], []
    for name in scores.magnitudes:
        values = []
        for _, kept, block in scores.kept_blocks(name):
            if low > -math.inf:
                under = _under(block, kept, low)
                below += int(np.count_nonzero(under))
                flat = as_array(block)
                sums.append(float(np.dot(flat, under.astype(flat.dtype))))
            values.append(_between(block, kept, low, high)[1])
        pieces.append(Piece(name, np.zeros(0, np.int64), np.concatenate(values)))
    return Found(below, math.fsum(sums), pieces)


def _tasks(scores: FactoredScores, name: str, high: float, share: float) -> list[Callable[[], Piece]]:
    """What threads have to do to look through one tensor."""
    weight = scores.magnitudes[name].reshape(scores.gradients[name].rows, -1).numpy()
    limit = weight.dtype.type(high)
    kind = np.int32 if four_bytes_do(scores.magnitudes[name]) else np.int64
    search = partial(_searched, name, share, kind, scores.loops.pick_product)
    if (scale := scores.scale(name)) != 1.0:
        limit = weight.dtype.type(min(high / scale * (1 + SLACK), np.finfo(weight.dtype).max))
        search = partial(_scaled, search, weight.dtype.type(scale), high)
    found = scores.pair(name) if name not in scores.masks else None
    bounds = None if found is None else _bounds(scores, name, *found)
    if found is None or bounds is None:
        return [partial(_listed, scores, name, high)]
    (left, seen), (sums, parts, tiny) = found, bounds
    step = max(CHUNK // max(len(seen), 1), 1)
    return [
        partial(
            search, weight[top : top + step], left[top : top + step], sums[top : top + step], seen, parts, limit,
            tiny, name in scores.roots, first=top * len(seen),
        )
        for top in range(0, len(weight), step)
    ]  # fmt: skip


def _bounds(
    scores: FactoredScores, name: str, left: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Any] | None:
    """Lower bounds of a gradient, by row and by column; None where a score might overflow."""
    kinds = scores.gradients[name].shape[2:].numel()
    if kinds > KINDS:
        kinds = 1
    sums, parts = np.empty((len(left), kinds), left.dtype), np.empty(len(seen), left.dtype)
    tiny = left.dtype.type(np.finfo(left.dtype).tiny * 1e8)
    most, least = scores.loops.lower_bounds(left, seen, parts, sums, tiny)
    # Not a number fails both.
    return (sums, parts, tiny) if most * scores.largest_magnitude(name) < HUGE and least >= 0 else None


def _searched(name: str, share: float, kind: Any, loop: Any, weight: np.ndarray, *given: Any, first: int) -> Piece:
    """Run the compiled loop with room for what is expected, and again with room for all where that was too little."""
    for room in (min(int(SPARE * share * weight.size), weight.size) + ROOM, weight.size + ROOM):
        places, values = np.empty(room, kind), np.empty(room, weight.dtype)
        number = loop(weight, *given, places, values, first)
        if number >= 0:
            break
    return Piece(name, places[:number], values[:number])


def _scaled(search: Callable[..., Piece], scale: Any, high: float, *given: Any, first: int) -> Piece:
    """The pieces of a tensor whose scores are scaled."""
    name, places, values = search(*given, first=first)
    values = values * scale
    light = values <= high
    return Piece(name, places[light], values[light])


def _listed(scores: FactoredScores, name: str, high: float) -> Piece:
    """What lies below `high` in one tensor, block by block."""
    kind = np.int32 if four_bytes_do(scores.magnitudes[name]) else np.int64
    places, values = [np.zeros(0, kind)], []
    for start, kept, block in scores.kept_blocks(name):
        here, light = _between(block, kept, -math.inf, high)
        places.append((here + start).astype(kind))
        values.append(light)
    return Piece(name, np.concatenate(places), np.concatenate(values))


def clear(pieces: list[Piece], edge: float, masks: dict[str, Tensor], magnitudes: dict[str, Tensor]) -> None:
    """Take out what was found below the edge."""
    for name, places, values in pieces:
        last = torch.from_numpy(places[values < edge]).long()
        for tensor in (masks.get(name), magnitudes.get(name)):
            if tensor is not None:
                tensor.view(-1).index_fill_(0, last.to(tensor.device), 0)


def at_edge_of(pieces: list[Piece], name: str, edge: float) -> Tensor:
    """Positions in a tensor of what was found just at the edge, in order."""
    equal = [piece.places[piece.values == edge] for piece in pieces if piece.name == name]
    return torch.from_numpy(np.sort(np.concatenate(equal)) if equal else np.zeros(0)).long()


# NumPy compares and gathers several times as fast as torch does on a processor; from other devices blocks are copied.


def not_below(block: Tensor, edge: float) -> Tensor:
    """Where scores are at the edge or above it."""
    flat = as_array(block)
    return torch.from_numpy(np.greater_equal(flat, flat.dtype.type(edge))).to(block.device)


def at_edge(block: Tensor, kept: Tensor, edge: float) -> Tensor:
    """Where kept weights score just the edge."""
    return torch.from_numpy(_between(block, kept, edge, edge)[0]).to(block.device)


def _under(block: Tensor, kept: Tensor, low: float) -> np.ndarray:
    flat = as_array(block)
    under: np.ndarray = np.less(flat, flat.dtype.type(low))
    np.logical_and(under, as_array(kept), out=under)
    return under


def _between(block: Tensor, kept: Tensor, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Places and scores of the kept weights from `low` to `high`."""
    flat = as_array(block)
    flags = np.less_equal(flat, flat.dtype.type(high))
    if low > -math.inf:
        np.logical_and(flags, flat >= flat.dtype.type(low), out=flags)
    here = np.flatnonzero(np.logical_and(flags, as_array(kept), out=flags))
    return here, flat.take(here)
