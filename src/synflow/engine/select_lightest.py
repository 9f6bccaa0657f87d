"""The lightest weights of a network, exactly, without holding all scores.

A sample of scores gives a limit below which a few more than the wanted number lie; one pass gathers what is below it;
an exact selection among those few follows. Counts and gathered values add up over tensors, so over shards as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .candidate_passes import Found, Piece, at_edge, at_edge_of, clear, find_between, find_light, not_below
from .scores import FactoredScores


@dataclass(frozen=True)
class Lightest:
    """The lightest weights: all below the edge, and of those at the edge the `ties` that come last.

    `pieces` hold them, and some more; where they are many they are not held, but found again.
    """

    number: int
    total: float
    edge: float = -math.inf
    ties: int = 0
    pieces: list[Piece] | None = None


NOTHING = Lightest(0, 0.0, pieces=[])


def lightest_weights(scores: FactoredScores, total: int, number: int, budget: float = math.inf) -> Lightest:
    """The `number` lightest of `total` kept weights, later positions first among equals.

    Fewer, where the scores of that many would sum to the budget or more.
    """
    if number == 0:
        return NOTHING
    sample = scores.sample(total)
    position = number / total * len(sample)
    if budget < math.inf:
        sums = np.cumsum(sample, dtype=np.float64) * (total / max(len(sample), 1))
        position = min(position, int(np.searchsorted(sums, budget)))
    limits = scores.thresholds
    few = position <= limits.list_share * len(sample) and position * total <= limits.list_most * len(sample)
    spread = 4.0 * math.sqrt(position) + 4.0
    while True:
        top, bottom = math.ceil(position + spread), math.floor(position - spread)
        high = float(sample[top]) if top < len(sample) else math.inf
        low = -math.inf if few or bottom < 0 else float(sample[bottom])
        found = find_light(scores, high, position / max(len(sample), 1)) if few else find_between(scores, low, high)
        values = np.concatenate([piece.values for piece in found.pieces])
        gathered = found.below + len(values)
        affordable = _affordable(found, values, budget)
        wanted = min(number, affordable)
        enough = affordable < gathered or gathered >= number or high == math.inf
        if enough and (wanted > found.below or low == -math.inf):
            return _exactly(found, values, wanted, listed=few)
        spread *= 4


def _affordable(found: Found, values: np.ndarray, budget: float) -> int:
    """How many of the lightest weights that were found have scores that sum to less than the budget."""
    if budget == math.inf:
        return found.below + len(values)
    sums = np.cumsum(np.sort(values), dtype=np.float64)
    sums += found.sum_below
    return found.below + int(np.searchsorted(sums, budget))


def _exactly(found: Found, everything: np.ndarray, number: int, listed: bool) -> Lightest:
    """The lightest `number`; of equals at the edge the last ones go, so that earlier ones stay."""
    if number == 0:
        return NOTHING
    order = number - found.below
    everything.partition(order - 1)
    edge, going = everything[order - 1], everything[:order]
    ties = int(np.count_nonzero(going == edge))
    total = math.fsum([found.sum_below, float(going.sum(dtype=np.float64))])
    return Lightest(number, total, float(edge), ties, found.pieces if listed else None)


def remove(scores: FactoredScores, going: Lightest) -> None:
    """Take the lightest weights out of masks and magnitudes."""
    _take_out(scores, going, scores.masks, scores.magnitudes)


def masks_without(scores: FactoredScores, going: Lightest) -> dict[str, Tensor]:
    """The masks after a removal, in tensors of their own."""
    masks = {name: scores.kept(name).clone() for name in scores.magnitudes}
    _take_out(scores, going, masks, {})
    return masks


def put_back(scores: FactoredScores, going: Lightest, magnitudes_at: Callable[[str, Tensor], Tensor]) -> None:
    """Undo the removal of weights that are listed; `magnitudes_at` tells what was in some places of a tensor."""
    for piece in going.pieces or []:
        flat = scores.magnitudes[piece.name].view(-1)
        here = torch.from_numpy(piece.places).long().to(flat.device)
        if piece.name in scores.masks:
            scores.masks[piece.name].view(-1).index_fill_(0, here, True)
        flat.index_copy_(0, here, magnitudes_at(piece.name, here))


def _take_out(scores: FactoredScores, going: Lightest, masks: dict[str, Tensor], magnitudes: dict[str, Tensor]) -> None:
    if going.pieces is not None:
        clear(going.pieces, going.edge, masks, magnitudes)
    missing = going.ties
    for name in reversed(scores.magnitudes):
        flat = masks[name].view(-1) if name in masks else None
        values = magnitudes[name].view(-1) if name in magnitudes else None
        if going.pieces is not None:
            if not missing:
                break
            last = at_edge_of(going.pieces, name, going.edge).to(scores.magnitudes[name].device)[-missing:]
        else:
            last = _clear_below(scores, name, going.edge, flat, values)
            last = last[-missing:] if missing else last[:0]
        missing -= len(last)
        if flat is not None:
            flat.index_fill_(0, last, False)
        if values is not None:
            values.index_fill_(0, last, 0.0)


def _clear_below(scores: FactoredScores, name: str, edge: float, flat: Tensor | None, values: Tensor | None) -> Tensor:
    """Take out what scores below the edge in one tensor, by making its scores again; where scores equal the edge."""
    equal = []
    for start, kept, block in scores.kept_blocks(name):
        stop = start + len(kept)
        equal.append(at_edge(block, kept, edge) + start)
        stays = not_below(block, edge)
        if flat is not None:
            flat[start:stop].logical_and_(stays)
        if values is not None:
            values[start:stop].mul_(stays)
    return torch.cat(equal)
