"""The lightest weights of a network, exactly, without holding all scores.

A sample of scores gives a limit below which a few more than the wanted number lie; one pass gathers what is below it;
an exact selection among those few follows. Where the wanted weights are too many to be listed, the pass marks those
below a second limit and gathers only what lies between the two. Counts and gathered values add up over tensors, so over
shards as well.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .candidate_passes import Piece, find_between, find_light
from .scores import FactoredScores, fill


@dataclass(frozen=True)
class FastRemoval:
    """Weights to remove: how many, what their `scores` sum to, and where they are.

    `gone` holds for each tensor that loses any their flat positions, or a mask of them where they are many.
    """

    number: int
    total: float
    scores: FactoredScores
    gone: dict[str, Tensor]


def lightest_weights(scores: FactoredScores, total: int, number: int, budget: float = math.inf) -> FastRemoval:
    """The `number` lightest of `total` kept weights, later positions first among equals.

    Fewer, where the scores of that many would sum to the budget or more.
    """
    if number == 0:
        return FastRemoval(0, 0.0, scores, {})
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
        pieces = find_light(scores, high, position / max(len(sample), 1)) if few else find_between(scores, low, high)
        values = np.concatenate([piece.values for piece in pieces])
        below, lighter = sum(piece.number for piece in pieces), math.fsum(piece.total for piece in pieces)
        gathered = below + len(values)
        affordable = below + _affordable(values, budget, lighter)
        wanted = min(number, affordable)
        enough = affordable < gathered or gathered >= number or high == math.inf
        if enough and (wanted > below or low == -math.inf):
            break
        del pieces, values  # before the next ones are gathered
        spread *= 4
    return _lightest(scores, pieces, values, wanted)


def _affordable(values: np.ndarray, budget: float, spent: float) -> int:
    """How many scores, lightest first, sum to less than the budget, of which a part is spent."""
    if budget == math.inf:
        return len(values)
    sums = np.cumsum(np.sort(values), dtype=np.float64)
    sums += spent
    return int(np.searchsorted(sums, budget))


def _lightest(scores: FactoredScores, pieces: list[Piece], values: np.ndarray, number: int) -> FastRemoval:
    """The lightest `number`, exactly; of equals at the edge the last ones go, so that earlier ones stay."""
    if number == 0:
        return FastRemoval(0, 0.0, scores, {})
    order = number - sum(piece.number for piece in pieces)
    values.partition(order - 1)
    edge, going = values[order - 1], values[:order]
    ties = int(np.count_nonzero(going == edge))
    total = math.fsum([*(piece.total for piece in pieces), float(going.sum(dtype=np.float64))])
    by_name: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_name[piece.name].append(piece)
    gone = {}
    for name in reversed(by_name):
        own, below = by_name[name], by_name[name][0].below
        equal = np.sort(np.concatenate([piece.places[piece.values == edge] for piece in own]))
        last = equal[max(len(equal) - ties, 0) :]
        ties -= len(last)
        places = np.concatenate([*(piece.places[piece.values < edge] for piece in own), last])
        gone[name] = torch.from_numpy(places).to(scores.magnitudes[name].device)
        if below is not None:
            gone[name] = fill(below, gone[name], True)
    return FastRemoval(number, total, scores, gone)
