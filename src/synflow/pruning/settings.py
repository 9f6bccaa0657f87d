"""A plan: every setting of a pruning run, checked at the door, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .._version import __version__
from ..errors import SynflowError, choose
from ..flow.dispatch import NoRuleError
from ..flow.paths import fewest_kept, fewest_weights, shortest_path, single_length
from ..masks.attach import attached, fingerprint
from ..masks.checks import full_masks
from ..network.private_copy import Batch, Loss, Network, open_network
from ..network.selection import Select
from ..support.chunked import count
from .schedules import SCHEDULES, Schedule, certified, exponential
from .scopes import SCOPES, Scope
from .scores import DEFAULT_STEPS, FLOW_POWER, SCORES, Score

# A path has a few weights per tensor; only counts near that can be too few for one.
FEW = 64


@dataclass(frozen=True)
class Plan:
    """Everything a run needs, checked."""

    network: Network
    score: Score
    schedule: Schedule
    scope: Scope
    steps: int | None
    start: dict[str, Tensor]
    keep: int
    margin: float
    guard: bool
    about: dict[str, Any]
    shield: dict[str, Tensor] | None = None

    @property
    def power(self) -> int | None:
        """The power of the weights in the flow, None for a score that is no flow."""
        return FLOW_POWER.get(self.score)


def make_plan(
    model: nn.Module, example: Any, *, compression: float | None, density: float | None, score: str | Score,
    steps: int | None, schedule: str | Schedule | None, margin: float, guard: bool, scope: str | Scope,
    data: Iterable[Batch] | None, loss: Loss, select: Select, protect: str | Iterable[str],
    masks: Mapping[str, Tensor] | None, seed: int,
) -> Plan:  # fmt: skip
    """Check all settings at the door, before anything is computed."""
    function: Score = choose("score", score, SCORES)
    fall: Schedule = choose("schedule", exponential if schedule is None else schedule, SCHEDULES)
    where: Scope = choose("scope", scope, SCOPES)
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise SynflowError(f"steps must be a whole number of at least 1, got {steps!r}")
    if not 0 < margin < 1:
        raise SynflowError(f"margin must lie between 0 and 1, got {margin!r}")
    if fall is certified and function not in FLOW_POWER:
        raise SynflowError(
            "the certified schedule follows the flow, so it needs score='synflow' or 'synflow_l2', "
            f"got {score!r}; choose another schedule for it"
        )
    target = _target_density(compression, density)
    network = open_for(model, example, function, select, protect, data, loss, seed)
    start = full_masks(attached(model) or None if masks is None else masks, network.weights)
    keep = round(network.size * target)
    _check_target(network, keep, count(start), target)
    if function not in FLOW_POWER:
        _ready(network, function)
    _check_reachable(network, start, keep, strict=guard and function in FLOW_POWER)
    if steps is None and fall is not certified:
        steps = DEFAULT_STEPS.get(function, 1)
    about = {
        "method": _name(score), "compression": network.size / keep, "schedule": _name(schedule or "exponential"),
        "steps": steps, "scope": _name(scope), "seed": seed, "guard": guard, "margin": margin,
        "weights": network.size, "kept": keep, "fingerprint": fingerprint(model), "version": __version__,
    }  # fmt: skip
    shield = None
    if guard and function in FLOW_POWER and keep <= FEW * len(network.weights) and not single_length(network):
        # Paths differ in length: flow alone may lead onto one with more weights than are to stay.
        shield = shortest_path(network, start, heavy=True)
        if count(shield) > keep:
            shield = shortest_path(network, start)
    return Plan(network, function, fall, where, steps, start, keep, margin, guard, about, shield)


def open_for(
    model: nn.Module, example: Any, function: Score, select: Select, protect: str | Iterable[str],
    data: Iterable[Batch] | None, loss: Loss, seed: int,
) -> Network:  # fmt: skip
    """Open a network for a score, so that errors name it."""
    name = f"score {_name(function)!r}"
    return open_network(
        model, example, select=select, protect=protect, data=data, loss=loss, seed=seed, score_name=name
    )


def _name(value: str | Callable[..., Any]) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)


def _ready(network: Network, function: Score) -> None:
    """Refuse missing data at the door, for the scores that are known to need it."""
    if function in SCORES.values() and function.__name__ not in ("magnitude", "random"):
        _ = network.batches


def _target_density(compression: float | None, density: float | None) -> float:
    if (compression is None) == (density is None):
        raise SynflowError("give either compression=... (at least 1) or density=... (the share that stays, 0 to 1)")
    if compression is not None:
        if not compression >= 1 or math.isinf(compression):
            raise SynflowError(f"compression must be at least 1 (100 keeps one weight in 100), got {compression!r}")
        return 1.0 / compression
    assert density is not None
    if not 0 < density <= 1:
        raise SynflowError(f"density is the share of weights that stays, above 0 and at most 1, got {density!r}")
    return density


def _check_target(network: Network, keep: int, start: int, density: float) -> None:
    if keep < 1:
        raise SynflowError(
            f"compression {1 / density:g} of {network.size} weights leaves none; the most that leaves a path is "
            f"{network.size / (fewest_weights(network) or 1):g}"
        )
    if keep > start:
        raise SynflowError(
            f"{keep} of {network.size} weights are to stay but the given masks keep only {start}; pruned weights stay "
            f"pruned: ask for a compression of at least {network.size / start:g}"
        )


def _check_reachable(network: Network, masks: Mapping[str, Tensor], keep: int, strict: bool) -> None:
    """Refuse a compression at which no network of this architecture has a path."""
    if keep > FEW * len(network.weights) and not strict:
        return
    try:
        fewest = fewest_weights(network, masks)
        if fewest is not None and fewest > keep:
            # The number is exact for the whole network; what masks leave may be narrower, which the loop finds out.
            fewest = fewest_kept(network)
    except NoRuleError:
        if strict:
            raise
        return  # scores without a flow do not need the flow engine
    if fewest is None:
        raise SynflowError(
            "no path leads from an input to an output"
            + (" under the given masks" if count(masks) < network.size else "; check the model and the example")
        )
    if keep < fewest:
        raise SynflowError(
            f"compression {network.size / keep:g} keeps {keep} of {network.size} weights, but a path from input to "
            f"output needs {fewest}; the maximum compression is {network.size / fewest:g}"
        )


def allocate(
    plan: Plan, scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int
) -> dict[str, Tensor]:
    """Masks by the plan's scope, checked; candidates with the highest scores stay."""
    _check_scores(scores, plan.network)
    masks = plan.scope(_shielded(scores, plan), candidates, keep)
    if count(masks) != keep:
        raise SynflowError(f"the scope kept {count(masks)} weights where {keep} were asked for")
    return masks


def _shielded(scores: Mapping[str, Tensor], plan: Plan) -> Mapping[str, Tensor]:
    """Scores with the shielded path above all others."""
    if plan.shield is None:
        return scores
    return {name: score.masked_fill(plan.shield[name], math.inf) for name, score in scores.items()}


def _check_scores(scores: Mapping[str, Tensor], network: Network) -> None:
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
