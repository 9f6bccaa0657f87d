"""Select the best of many scores: exactly the requested number, ties broken by position."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import SynflowError
from . import chunked


def keep_best(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Keep the `count` candidates with the highest scores; among equals, those that come first.

    >>> scores = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([1.0, 2.0])}
    >>> keep_best(scores, {name: torch.ones(2, dtype=torch.bool) for name in scores}, 3)
    {'a': tensor([True, True]), 'b': tensor([False,  True])}
    """
    scores = _comparable(scores)
    for name in candidates:
        _check_ordered(name, scores[name])
    total = chunked.count(candidates)
    if count > total:
        raise SynflowError(f"{count} weights are to stay but only {total} are left; ask for a higher compression")
    if count == total:
        return {name: mask.clone(memory_format=torch.contiguous_format) for name, mask in candidates.items()}
    if count == 0:
        return {name: torch.zeros_like(mask) for name, mask in candidates.items()}
    threshold = chunked.kth_largest(scores, candidates, count, total)
    kept = {
        name: torch.gt(scores[name], threshold).logical_and_(mask).contiguous() for name, mask in candidates.items()
    }
    missing = count - chunked.count(kept)
    for name, mask in kept.items():
        if missing == 0:
            break
        ties = torch.nonzero((candidates[name] & (scores[name] == threshold)).flatten()).flatten()[:missing]
        mask.view(-1)[ties] = True
        missing -= ties.numel()
    return kept


def best_of_each(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The best candidates of each tensor: the given share of them, rounded up."""
    kept: dict[str, Tensor] = {}
    for name, mask in candidates.items():
        kept |= keep_best({name: scores[name]}, {name: mask}, math.ceil(chunked.count({name: mask}) * share))
    return kept


def _comparable(scores: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The scores in one type, if their types differ or cannot be ranked."""
    types = {score.dtype for score in scores.values()}
    if types in ({torch.float32}, {torch.float64}):
        return scores
    narrow = types <= {torch.float16, torch.bfloat16, torch.float32}
    return {name: score.to(torch.float32 if narrow else torch.float64) for name, score in scores.items()}


def _check_ordered(name: str, scores: Tensor) -> None:
    """Refuse scores that have no order; one sum detects a nan."""
    if bool(torch.isnan(scores.sum())) and bool(torch.isnan(scores).any()):
        bad = int(torch.isnan(scores).sum())
        raise SynflowError(f"{name}: {bad} of {scores.numel()} scores are nan; no ranking is possible")
