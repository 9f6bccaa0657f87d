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
from .scores import HUGE, FactoredScores

# Fewer weights than this are searched or removed by one thread: waking others takes longer.
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
                flat = _numpy(block)
                sums.append(float(np.dot(flat, under.astype(flat.dtype))))
            values.append(_between(block, kept, low, high)[1])
        pieces.append(Piece(name, np.zeros(0, np.int64), np.concatenate(values)))
    return Found(below, math.fsum(sums), pieces)


def _tasks(scores: FactoredScores, name: str, high: float, share: float) -> list[Callable[[], Piece]]:
    """What threads have to do to look through one tensor."""
    gradient, loops = scores.gradients[name], scores.loops
    weight = scores.magnitudes[name].reshape(gradient.rows, -1).numpy()
    limit = weight.dtype.type(high)
    kind = np.int32 if four_bytes_do(scores.magnitudes[name]) else np.int64
    search = partial(_searched, name, share, kind)
    if (scale := scores.scale(name)) != 1.0:
        limit = weight.dtype.type(min(high / scale * (1 + SLACK), np.finfo(weight.dtype).max))
        search = partial(_scaled, search, weight.dtype.type(scale), high)
    alone: list[Callable[[], Piece]] = [partial(_listed, scores, name, high)]
    if name in scores.masks:
        return alone
    if gradient.dense is None:
        found = scores.pair(name)
        bounds = None if found is None else _bounds(scores, name, *found)
        if found is None or bounds is None:
            return alone
        (left, seen), (sums, parts, tiny) = found, bounds
        step = max(CHUNK // max(len(seen), 1), 1)
        return [
            partial(
                search, loops.pick_product, weight[top : top + step], left[top : top + step],
                sums[top : top + step], seen, parts, limit, tiny, first=top * len(seen),
            )
            for top in range(0, len(weight), step)
        ]  # fmt: skip
    if not scores.cannot_overflow(name) or gradient.dense.dtype != scores.magnitudes[name].dtype:
        return alone
    if not gradient.uses:
        return _dense_tasks(loops, search, weight, gradient.dense.reshape(weight.shape).numpy(), limit, 0)
    pieces: list[Piece] = []
    for start, stop, block in gradient.blocks(scores.factors(name), CHUNK, scores.magnitudes[name]):
        first = start * weight.shape[1]
        for task in _dense_tasks(loops, search, weight[start:stop], block.numpy(), limit, first):
            pieces.append(task())
    return [partial(_same, piece) for piece in pieces]


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


def _dense_tasks(
    loops: Any, search: Any, weight: np.ndarray, gradient: np.ndarray, limit: Any, first: int
) -> list[Callable[[], Piece]]:
    flat, slopes = weight.reshape(-1), gradient.reshape(-1)
    step = min(CHUNK, max(len(flat) // 2, CHUNK // 8))
    return [
        partial(
            search, loops.pick_dense, flat[start : start + step], slopes[start : start + step], limit,
            first=first + start,
        )
        for start in range(0, len(flat), step)
    ]  # fmt: skip


def _searched(name: str, share: float, kind: Any, loop: Any, weight: np.ndarray, *given: Any, first: int) -> Piece:
    """Run a compiled loop with room for what is expected, and again with room for all where that was too little."""
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


def _same(piece: Piece) -> Piece:
    return piece


def _listed(scores: FactoredScores, name: str, high: float) -> Piece:
    """What lies below `high` in one tensor, block by block."""
    kind = np.int32 if four_bytes_do(scores.magnitudes[name]) else np.int64
    places, values = [np.zeros(0, kind)], []
    for start, kept, block in scores.kept_blocks(name):
        here, light = _between(block, kept, -math.inf, high)
        places.append((here + start).astype(kind))
        values.append(light)
    return Piece(name, np.concatenate(places), np.concatenate(values))


def clear(
    pieces: list[Piece], edge: float, masks: dict[str, Tensor], magnitudes: dict[str, Tensor], loops: Any
) -> None:
    """Take out what was found below the edge."""
    tasks = []
    for name, places, values in pieces:
        weights = magnitudes[name].view(-1) if name in magnitudes else None
        if loops is not None and weights is not None and name not in masks:
            tasks.append(partial(loops.clear, places, values, values.dtype.type(edge), weights.numpy()))
            continue
        last = torch.from_numpy(places[values < edge]).long()
        if name in masks:
            masks[name].view(-1).index_fill_(0, last.to(masks[name].device), False)
        if weights is not None:
            weights.index_fill_(0, last.to(weights.device), 0.0)
    if tasks:
        loops.side_by_side(tasks, sum(len(piece.places) for piece in pieces) < SHORT)


def at_edge_of(pieces: list[Piece], name: str, edge: float) -> Tensor:
    """Positions in a tensor of what was found just at the edge, in order."""
    equal = [piece.places[piece.values == edge] for piece in pieces if piece.name == name]
    return torch.from_numpy(np.sort(np.concatenate(equal)) if equal else np.zeros(0)).long()


def not_below(block: Tensor, edge: float) -> Tensor:
    if block.device.type != "cpu":
        return torch.ge(block, edge)
    flat = block.numpy()
    return torch.from_numpy(np.greater_equal(flat, flat.dtype.type(edge)))


def at_edge(block: Tensor, kept: Tensor, edge: float) -> Tensor:
    """Where kept weights score just the edge."""
    if block.device.type != "cpu":
        return torch.nonzero((block == edge).logical_and_(kept)).view(-1)
    flat = block.numpy()
    flags = np.equal(flat, flat.dtype.type(edge))
    return torch.from_numpy(_true(np.logical_and(flags, kept.numpy(), out=flags)))


def keep(values: Tensor, stays: Tensor) -> None:
    """Zero all values but those that stay."""
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):
        array = values.numpy()  # torch fills under a mask twelve times as slowly
        np.multiply(array, stays.numpy(), out=array)
    else:
        values.masked_fill_(stays.logical_not(), 0.0)


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _under(block: Tensor, kept: Tensor, low: float) -> np.ndarray:
    flat = _numpy(block)
    under: np.ndarray = np.less(flat, flat.dtype.type(low))
    np.logical_and(under, _numpy(kept), out=under)
    return under


def _between(block: Tensor, kept: Tensor, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Places and scores of the kept weights from `low` to `high`."""
    if block.device.type == "cpu":
        # NumPy compares and gathers several times faster than torch does on a processor.
        flat = block.numpy()
        flags = np.less_equal(flat, flat.dtype.type(high))
        if low > -math.inf:
            np.logical_and(flags, flat >= flat.dtype.type(low), out=flags)
        here = _true(np.logical_and(flags, kept.numpy(), out=flags))
        return here, flat.take(here)
    places = torch.nonzero(torch.le(block, high).logical_and_(torch.ge(block, low)).logical_and_(kept)).view(-1)
    return _numpy(places), _numpy(block[places])


def _true(flags: np.ndarray) -> np.ndarray:
    """Where flags are set; few are, so eight are looked at in one go."""
    whole = len(flags) // 8 * 8
    words = flags[:whole].view(np.uint64)
    some = np.flatnonzero(words != 0)
    inner = np.flatnonzero(words[some].view(np.bool_))
    places = (some[inner >> 3] << 3) + (inner & 7)
    return places if whole == len(flags) else np.concatenate([places, whole + np.flatnonzero(flags[whole:])])
