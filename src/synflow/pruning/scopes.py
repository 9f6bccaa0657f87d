"""From scores and a count to masks: exactly that many weights, ties broken by position; a shield stays in any case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import SynflowError
from ..masks.checks import check_mapping
from ..network.private_copy import Network
from ..support.chunked import count
from ..support.ranking import keep_best

# Bisections until a factor is exact in double precision.
BISECTIONS = 200
# Smart ratio: the density of the last layer, as in its authors' experiments.
LAST_LAYER = 0.3

Scope: TypeAlias = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], int], "dict[str, Tensor]"]


def global_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """The best weights of the whole network."""
    return keep_best(scores, candidates, keep)


def layer_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """The same density in each layer, the best weights within it; others call this uniform."""
    return _by_shares(scores, candidates, keep, _sizes(candidates))


def uniform_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """The first layer dense and the same density in all others, as in RigL; where that is too many, as `layer`."""
    sizes = _sizes(candidates)
    first, rest = sizes[0], sizes[1:].sum()
    if len(sizes) > 1 and keep >= first + len(sizes) - 1:
        sizes[1:] *= (keep - first) / rest
    return _by_shares(scores, candidates, keep, sizes)


def er_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """Erdos-Renyi: density as (inputs + outputs) / (inputs * outputs), at most one (other code calls `erk` that)."""
    ends = [tuple(mask.shape[:2]) or (1,) for mask in candidates.values()]
    raw = np.array([sum(pair) / math.prod(pair) for pair in ends])
    return _by_shares(scores, candidates, keep, raw * _sizes(candidates))


def erk_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """Erdos-Renyi-kernel: density proportional to (sum of all dimensions) / (product), at most one."""
    return _by_shares(scores, candidates, keep, np.array([float(sum(m.shape) or 1) for m in candidates.values()]))


def igq_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """Ideal gas quotas: a layer of n weights has the density 1 / (1 + F n), with one F for the network."""
    sizes = _sizes(candidates)
    low, high = 0.0, float(len(sizes))  # with the upper one less than one weight stays in all
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if (sizes / (1 + middle * sizes)).sum() > keep else (low, middle)
    return _by_shares(scores, candidates, keep, sizes / (1 + high * sizes))


def smart_scope(scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
    """Smart ratio: density falls with depth as k^2 + k, k = L, L - 1, ...; the last layer has 30% (or half of all)."""
    sizes = _sizes(candidates)
    steps = np.arange(len(sizes), 0, -1.0)
    shares = (steps**2 + steps) * sizes
    shares[-1] = min(LAST_LAYER * sizes[-1], keep / 2)
    others = sizes[:-1]
    if keep - shares[-1] <= others.sum():
        shares[:-1] = _filled(shares[:-1], 0 * others, others, keep - shares[-1])
    return _by_shares(scores, candidates, keep, shares)


SCOPE_FORM = "(scores, candidates, keep) -> masks"
SCOPES: dict[str, Scope] = {
    "global": global_scope,
    "layer": layer_scope,
    "uniform": uniform_scope,
    "er": er_scope,
    "erk": erk_scope,
    "igq": igq_scope,
    "smart": smart_scope,
}


def allocate(
    network: Network,
    scope: Scope,
    scores: Mapping[str, Tensor],
    candidates: Mapping[str, Tensor],
    keep: int,
    shield: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Masks of `keep` candidates by the scope: those with the highest scores stay, and the shield in any case."""
    _check_scores(scores, network)
    shielded = scores if shield is None else with_shield(scores, shield)
    masks = scope(shielded, candidates, keep)
    check_mapping(masks, " from the scope")
    if count(masks) != keep:
        raise SynflowError(f"the scope kept {count(masks)} weights where {keep} were asked for")
    if shield is None or scope is global_scope:
        return masks
    # A scope that counts by layer may keep fewer of a layer than the shield has: the lightest others make room.
    return keep_best(shielded, {name: mask | shield[name] for name, mask in masks.items()}, keep)


def difference(masks: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that a removal takes: those of the first masks that the second ones do not keep."""
    return {name: mask & ~kept[name] for name, mask in masks.items()}


def with_shield(scores: Mapping[str, Tensor], shield: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scores in which the weights of a shield rank above all others."""
    return {
        name: (score if score.is_floating_point() else score.float()).masked_fill(shield[name], math.inf)
        for name, score in scores.items()
    }


def _check_scores(scores: Mapping[str, Tensor], network: Network) -> None:
    if not isinstance(scores, Mapping):
        raise SynflowError(f"the score must return a dict of tensors by parameter name, got {type(scores).__name__}")
    if scores.keys() != network.weights.keys():
        raise SynflowError(
            f"the score must return one tensor per prunable weight ({', '.join(list(network.weights)[:3])}, ...), "
            f"got {', '.join(list(scores)[:3])}"
        )
    for name, value in scores.items():
        if value.shape != network.weights[name].shape:
            raise SynflowError(
                f"{name}: scores have shape {tuple(value.shape)}, expected {tuple(network.weights[name].shape)}"
            )


def _sizes(candidates: Mapping[str, Tensor]) -> np.ndarray:
    return np.array([mask.numel() for mask in candidates.values()], dtype=float)


def _by_shares(
    scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int, shares: np.ndarray
) -> dict[str, Tensor]:
    """Keep the best within each layer, layer counts in proportion to the shares; infinite scores stay in any case."""
    limits = np.array([int(mask.sum()) for mask in candidates.values()])
    must = [int((torch.isposinf(scores[name]) & mask).sum()) for name, mask in candidates.items()]
    counts = apportion(shares, limits, keep, np.array(must))
    kept = {}
    for (name, mask), number in zip(candidates.items(), counts, strict=True):
        kept.update(keep_best({name: scores[name]}, {name: mask}, int(number)))
    return kept


def apportion(shares: np.ndarray, limits: np.ndarray, total: int, must: np.ndarray | None = None) -> np.ndarray:
    """Whole numbers in proportion to the shares, at most the limits, that sum to the total exactly.

    Largest remainders; as long as the total allows, each layer has what it must have, and no layer is left empty.

    >>> apportion(np.array([5.0, 3.0, 0.1]), np.array([9, 9, 9]), 8)
    array([4, 3, 1])
    """
    if total > limits.sum():
        raise SynflowError(f"{total} weights are to stay but only {int(limits.sum())} are left")
    least = np.minimum(limits, 1)
    if must is not None and np.maximum(least, must).sum() <= total:
        least = np.maximum(least, must)
    elif total < least.sum():
        least = np.zeros_like(limits)
    ideal = _filled(shares, least, limits, total)
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


def _filled(shares: np.ndarray, least: np.ndarray, limits: np.ndarray, total: float) -> np.ndarray:
    """Shares times one factor, cut to the limits, that sum to the total."""
    low, high = 0.0, float(total) / max(float(shares[shares > 0].min(initial=1.0)), 1e-300)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(shares * middle, least, limits).sum() < total else (low, middle)
    filled: np.ndarray = np.clip(shares * low, least, limits)
    return filled
