"""One pass over all scores: which lie in a bracket, how many lie below it, and what they sum to.

Scores are made a block at a time and thrown away again. Where numba is installed, scores of large networks on a
processor are bounded, made where they may be light, and kept in one compiled loop; elsewhere in several passes over
each block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..support.chunked import four_bytes_do
from . import compiled

if TYPE_CHECKING:
    from .select_lightest import Scored

# Smaller networks are through before compiled loops have been loaded.
LARGE = 1 << 20
# So few weights are taken out by one thread.
SHORT = 1 << 15
# Weights that one thread looks through before it takes the next ones.
CHUNK = 1 << 19
# Kernels of more weights are not told apart in bounds of scores.
KINDS = 64
# Compiled loops write this much beyond what they keep.
ROOM = 1 << 10
# Some tensors have so many times their share of the light weights; room that is not used takes no memory.
SPARE = 6
# Below this no product overflows.
HUGE = 1e37


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


def find_light(scored: Scored, high: float, share: float) -> Found:
    """Kept weights that score no more than `high`, about a share of all, and where they are."""
    if scored.compiled is None:
        return Found(0, 0.0, [_listed(scored, name, high) for name in scored.magnitudes])
    together, short = scored.compiled.side_by_side, scored.size < LARGE
    lists = together([partial(_tasks, scored, name, high, share) for name in scored.magnitudes], short)
    return Found(0, 0.0, together([task for some in lists for task in some], short))


def found_in(scored: Scored, name: str, high: float, share: float) -> list[Piece]:
    """The same, in one tensor, by compiled loops on one thread."""
    return [task() for task in _tasks(scored, name, high, share)]


def find_between(scored: Scored, low: float, high: float) -> Found:
    """Kept weights that score from `low` to `high`, and how many score less; not where they are."""
    below, sums, pieces = 0, [], []
    for name in scored.magnitudes:
        values = []
        for _, kept, block in scored.kept_blocks(name):
            if low > -math.inf:
                under = _under(block, kept, low)
                below += int(np.count_nonzero(under))
                flat = _numpy(block)
                sums.append(float(np.dot(flat, under.astype(flat.dtype))))
            values.append(_between(block, kept, low, high)[1])
        pieces.append(Piece(name, np.zeros(0, np.int64), np.concatenate(values)))
    return Found(below, math.fsum(sums), pieces)


def kernels_for(magnitudes: Mapping[str, Tensor]) -> Any:
    """The compiled loops, where they are there and serve; else None."""
    serve = all(
        weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64) for weight in magnitudes.values()
    )
    return compiled.kernels() if serve and sum(weight.numel() for weight in magnitudes.values()) >= LARGE else None


def _tasks(scored: Scored, name: str, high: float, share: float) -> list[Callable[[], Piece]]:
    """What threads have to do to look through one tensor."""
    sensitivity, loops = scored.sensitivities[name], scored.compiled
    weight = scored.magnitudes[name].reshape(sensitivity.rows, -1).numpy()
    limit = weight.dtype.type(high)
    search = partial(_searched, name, share, np.int32 if four_bytes_do(scored.magnitudes[name]) else np.int64)
    alone: list[Callable[[], Piece]] = [partial(_listed, scored, name, high)]
    if name in scored.masks:
        return alone
    if sensitivity.dense is None:
        found = scored.pair(name)
        bounds = None if found is None else _bounds(scored, name, *found)
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
    if not scored.bounded(name) or sensitivity.dense.dtype != scored.magnitudes[name].dtype:
        return alone
    if not sensitivity.uses:
        return _dense_tasks(loops, search, weight, sensitivity.dense.reshape(weight.shape).numpy(), limit, 0)
    pieces: list[Piece] = []
    for start, stop, block in sensitivity.blocks(scored.factors(name), CHUNK, scored.magnitudes[name]):
        first = start * weight.shape[1]
        for task in _dense_tasks(loops, search, weight[start:stop], block.numpy(), limit, first):
            pieces.append(task())
    return [partial(_same, piece) for piece in pieces]


def _bounds(scored: Scored, name: str, left: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any] | None:
    """Lower bounds of a gradient, by row and by column; None where a score might overflow."""
    kinds = scored.sensitivities[name].shape[2:].numel()
    if kinds > KINDS:
        kinds = 1
    sums, parts = np.empty((len(left), kinds), left.dtype), np.empty(len(seen), left.dtype)
    tiny = left.dtype.type(np.finfo(left.dtype).tiny * 1e8)
    most, least = scored.compiled.lower_bounds(left, seen, parts, sums, tiny)
    # Not a number fails both.
    return (sums, parts, tiny) if most * scored.largest(name) < HUGE and least >= 0 else None


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


def _same(piece: Piece) -> Piece:
    return piece


def _listed(scored: Scored, name: str, high: float) -> Piece:
    """What lies below `high` in one tensor, block by block."""
    kind = np.int32 if four_bytes_do(scored.magnitudes[name]) else np.int64
    places, values = [np.zeros(0, kind)], []
    for start, kept, block in scored.kept_blocks(name):
        here, scores = _between(block, kept, -math.inf, high)
        places.append((here + start).astype(kind))
        values.append(scores)
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


def scores_at(scored: Scored, name: str, positions: Tensor) -> np.ndarray:
    """Scores of one tensor at some flat positions."""
    weight = scored.magnitudes[name].reshape(-1)
    pair = scored.pair(name) if scored.compiled is not None else None
    if pair is None:
        return _numpy(scored.sensitivities[name].at(scored.factors(name), positions) * weight[positions])
    values = np.empty(len(positions), pair[0].dtype)
    scored.compiled.products_at(positions.numpy(), *pair, weight.numpy(), values)
    return values


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
