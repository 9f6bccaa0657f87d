"""Passes over many tensors in small pieces: counts, sums, the k-th largest, without joining or copying them.

Every function here reduces to counts and sums over pieces, so it can also run per shard and add the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

# A piece fits in the second-level cache of most processors.
PIECE = 1 << 18
# With this many sampled scores the bracket around the k-th largest holds about three percent of all scores.
SAMPLE = 1 << 16

Tensors = Mapping[str, Tensor]


def count(masks: Tensors) -> int:
    """The number of kept weights in masks."""
    return sum(count_true(mask) for mask in masks.values())


def count_true(mask: Tensor) -> int:
    """The number of True in a mask."""
    if _is_single(mask):
        return mask.numel() * int(mask[(0,) * mask.dim()])
    if mask.device.type == "cpu":
        return int(np.count_nonzero(mask.detach().numpy()))  # many times faster than a sum over booleans
    return int(torch.count_nonzero(mask))


def keeps_all(mask: Tensor) -> bool:
    """Whether a mask is a single expanded True, like the initial masks."""
    return _is_single(mask) and bool(mask[(0,) * mask.dim()])


def _is_single(mask: Tensor) -> bool:
    return bool(mask.numel()) and not any(mask.stride())


def four_bytes_do(tensor: Tensor) -> bool:
    """Whether flat positions in a tensor fit into four bytes."""
    return tensor.numel() < 1 << 31


def pieces(scores: Tensors, masks: Tensors) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of flat pieces of scores and masks."""
    for name, mask in masks.items():
        flat, kept = scores[name].detach().reshape(-1), mask.reshape(-1)
        for start in range(0, flat.numel(), PIECE):
            yield flat[start : start + PIECE], kept[start : start + PIECE]


def total_score(scores: Tensors, masks: Tensors) -> float:
    """The sum of the scores of a set of weights."""
    return math.fsum(float((piece * kept).sum()) for piece, kept in pieces(scores, masks))


def kth_largest(scores: Tensors, candidates: Tensors, k: int, total: int) -> Tensor:
    """The k-th largest score among the candidates (k from one to their number, `total`).

    A sample brackets it; one pass counts the scores above the bracket and gathers those inside. The answer is exact for
    any sample; a bracket that misses is widened.
    """
    sample = _sample(scores, candidates, total)
    position, spread = (1.0 - (k - 0.5) / total) * len(sample), 4.0 * math.sqrt(len(sample))
    while True:
        low_index, high_index = math.floor(position - spread), math.ceil(position + spread)
        low = sample[low_index] if low_index >= 0 else -math.inf
        high = sample[high_index] if high_index < len(sample) else math.inf
        above, inside = _bracket(scores, candidates, low, high)
        if above < k <= above + inside.numel():
            values = inside.cpu().numpy()
            index = len(values) - (k - above)
            return torch.as_tensor(np.partition(values, index)[index])
        spread *= 4


def _sample(scores: Tensors, candidates: Tensors, total: int) -> np.ndarray:
    """Sorted scores of evenly spaced candidates."""
    stride = max(1, total // SAMPLE)
    parts = []
    for name, mask in candidates.items():
        flat, kept = scores[name].detach().reshape(-1), mask.reshape(-1)
        if stride > 1 and flat.numel() > stride:
            # An odd stride does not align with rows, whose lengths are mostly even.
            step = max(1, stride * count_true(kept) // flat.numel()) | 1
            flat, kept = flat[::step], kept[::step]
        parts.append(flat[kept])
    return np.sort(torch.cat(parts).cpu().numpy())


def _bracket(scores: Tensors, candidates: Tensors, low: float, high: float) -> tuple[int, Tensor]:
    """The number of candidates above `high`, and the candidates from `low` to `high`."""
    above, inside = 0, []
    for piece, kept in pieces(scores, candidates):
        over = torch.gt(piece, high).logical_and_(kept)
        above += count_true(over)
        within = torch.ge(piece, low).logical_and_(kept).logical_and_(over.logical_not_())
        if bool(within.any()):
            inside.append(piece[within])
    return above, torch.cat(inside) if inside else torch.empty(0)


def lightest(scores: Tensors, candidates: Tensors, budget: float) -> int:
    """The number of candidates, in ascending order, whose (non-negative) scores sum to less than the budget.

    >>> lightest({"a": torch.tensor([0.5, 0.1, 0.2])}, {"a": torch.tensor([True, True, True])}, 0.31)
    2
    """
    if sum(mask.numel() for mask in candidates.values()) <= PIECE:
        few = [piece[kept].double().cpu().numpy() for piece, kept in pieces(scores, candidates)]
        return int(np.searchsorted(np.cumsum(np.sort(np.concatenate([*few, []]))), budget, side="left"))
    # Non-negative floats order as their bits do: sum classes of equal leading bits, then sort the class at the edge.
    sums, counts = np.zeros(1 << 17), np.zeros(1 << 17, dtype=np.int64)
    for piece, kept in pieces(scores, candidates):
        values = piece[kept]
        classes = _leading_bits(values).cpu().numpy()
        sums += np.bincount(classes, weights=values.cpu().numpy(), minlength=len(sums))
        counts += np.bincount(classes, minlength=len(counts))
    running = np.cumsum(sums)
    edge = min(int(np.searchsorted(running, budget, side="left")), len(sums) - 1)
    start = float(running[edge - 1]) if edge else 0.0
    at_edge = [piece[kept][_leading_bits(piece[kept]) == edge] for piece, kept in pieces(scores, candidates)]
    inside = np.sort(torch.cat(at_edge).double().cpu().numpy())
    return int(counts[:edge].sum()) + int(np.searchsorted(np.cumsum(inside) + start, budget, side="left"))


def _leading_bits(values: Tensor) -> Tensor:
    """Sixteen leading bits below the sign, as a class that orders like the value."""
    values = values + 0.0  # -0.0 becomes 0.0, since their bits differ
    if values.dtype == torch.float64:
        return values.view(torch.int64) >> 47
    return (values.float().view(torch.int32) >> 15).long()
