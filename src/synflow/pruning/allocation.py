"""Masks from scores by a run's scope, checked; a shield of weights stays whatever its scores are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from ..errors import SynflowError
from ..masks.checks import check_mapping
from ..network.private_copy import Network
from ..support.chunked import count
from ..support.ranking import keep_best
from .scopes import Scope, global_scope


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
    # A scope that counts by layer may leave less room in a layer than the shield needs: the lightest others make room.
    return keep_best(shielded, {name: mask | shield[name] for name, mask in masks.items()}, keep)


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
