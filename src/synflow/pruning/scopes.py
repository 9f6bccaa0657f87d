"""From scores and a count to masks: exactly that many weights, ties broken by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from torch import Tensor

from ..errors import SynflowError
from ..support.ranking import keep_best

Scope: TypeAlias = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], int], "dict[str, Tensor]"]


def global_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """The best weights of the whole network."""
    return keep_best(scores, candidates, keep)


def layer_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """The same density in each layer, the best weights within it."""
    sizes = np.array([mask.numel() for mask in candidates.values()], dtype=float)
    return _by_counts(scores, candidates, keep, sizes)


def uniform_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """The first layer dense and the same density in all others, as in RigL; where that is too many, as `layer`."""
    sizes = np.array([mask.numel() for mask in candidates.values()], dtype=float)
    first, rest = sizes[0], sizes[1:].sum()
    if len(sizes) > 1 and keep >= first + len(sizes) - 1:
        sizes[1:] *= (keep - first) / rest
    return _by_counts(scores, candidates, keep, sizes)


def erk_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """Erdos-Renyi-kernel: a layer's density in proportion to (sum of its dimensions) / (product), at most one."""
    shapes = [tuple(mask.shape) for mask in candidates.values()]
    sizes = np.array([mask.numel() for mask in candidates.values()], dtype=float)
    raw = np.array([sum(shape) / np.prod(shape) if shape else 1.0 for shape in shapes])
    dense = np.zeros(len(sizes), dtype=bool)
    while True:
        # Layers that would exceed density one are dense; what they leave is shared among the others.
        open_weight = float((raw * sizes)[~dense].sum())
        factor = (keep - sizes[dense].sum()) / open_weight if open_weight else 0.0
        over = ~dense & (raw * factor > 1)
        if not over.any():
            break
        dense |= over
    return _by_counts(scores, candidates, keep, np.where(dense, sizes, raw * sizes * max(factor, 0.0)))


SCOPES: dict[str, Scope] = {
    "global": global_scope,
    "layer": layer_scope,
    "uniform": uniform_scope,
    "erk": erk_scope,
}


def _by_counts(
    scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int, shares: np.ndarray
) -> dict[str, Tensor]:
    """Keep the best within each layer, layer counts in proportion to the shares."""
    limits = np.array([int(mask.sum()) for mask in candidates.values()])
    counts = apportion(shares, limits, keep)
    kept = {}
    for (name, mask), number in zip(candidates.items(), counts, strict=True):
        kept.update(keep_best({name: scores[name]}, {name: mask}, int(number)))
    return kept


def apportion(shares: np.ndarray, limits: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to the shares, at most the limits, that sum to the total exactly.

    Largest remainders; as long as the total allows, no layer is left without a weight.

    >>> apportion(np.array([5.0, 3.0, 0.1]), np.array([9, 9, 9]), 8)
    array([4, 3, 1])
    """
    if total > limits.sum():
        raise SynflowError(f"{total} weights are to stay but only {int(limits.sum())} are left")
    least = np.minimum(limits, 1) if total >= np.count_nonzero(limits) else np.zeros_like(limits)
    low, high = 0.0, float(total) / max(float(shares[shares > 0].min(initial=1.0)), 1e-300)
    for _ in range(200):
        # Scale the shares so that, after the limits, they sum to the total.
        middle = (low + high) / 2
        if np.clip(shares * middle, least, limits).sum() < total:
            low = middle
        else:
            high = middle
    ideal = np.clip(shares * low, least, limits)
    counts: np.ndarray = np.maximum(np.floor(ideal + 1e-9).astype(np.int64), least)
    order = np.argsort(-(ideal - counts), kind="stable")
    while counts.sum() != total:
        missing = total - int(counts.sum())
        room = (
            order[counts[order] < limits[order]]
            if missing > 0
            else order[::-1][counts[order[::-1]] > least[order[::-1]]]
        )
        counts[room[: abs(missing)]] += 1 if missing > 0 else -1
    return counts
