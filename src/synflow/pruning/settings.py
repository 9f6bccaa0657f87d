"""Every setting of a pruning run, defined once, and checked before anything is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from .._version import __version__
from ..errors import SynflowError, brief, check_flag, choose
from ..flow.normalised import normalised
from ..flow.paths import cuts
from ..masks.attach import attached, fingerprint
from ..masks.checks import full_masks
from ..network.private_copy import Batch, Loss, Network, open_network
from ..network.selection import Select
from ..support.chunked import count
from .checks import (
    TIGHT,
    check_kinds,
    check_reachable,
    check_target,
    checked_margin,
    checked_seed,
    checked_steps,
    path_to_keep,
    target_density,
)
from .engine import Engine, EngineSettings, engine_named
from .schedules import SCHEDULE_FORM, SCHEDULES, Schedule, certified, exponential
from .scopes import SCOPE_FORM, SCOPES, Scope, allocate, global_scope
from .scores import SCORE_FORM, SCORES, Score, Traits, traits_of
from .skeleton import Skeleton, find_skeleton

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class PruningRun:
    """A run with all its settings, checked.

    `guard` keeps a path, `guard_layers` every layer alive. `shield` is a path that is never removed; `skeleton` is a
    set of weights that are never removed, so that every layer stays alive.
    """

    network: Network
    score: Score
    schedule: Schedule
    scope: Scope
    steps: int | None
    start: dict[str, Tensor]
    density: float
    keep: int
    margin: float
    guard: bool
    guard_layers: bool
    engine: str
    progress: bool
    about: dict[str, Any]
    shield: dict[str, Tensor] | None = None
    skeleton: Skeleton | None = None

    @property
    def traits(self) -> Traits:
        """What the loop has to know about the score."""
        return traits_of(self.score)

    @property
    def is_global(self) -> bool:
        """Whether the lightest weights of the whole network are those to remove."""
        return self.scope is global_scope and self.shield is None

    def new_engine(self, spread: bool) -> Engine:
        """The engine for a flow score; `spread` says that the flow is normalised."""
        balanced, power = self.traits.balanced, self.traits.flow_power or 1
        kept = cuts(self.network) if balanced else frozenset()
        settings = EngineSettings(power, balanced, kept, spread, self.steps)
        return engine_named(self.engine)(self.network, self.start, settings)

    def kept_after(self, step: int) -> int:
        """How many weights stay after a step: round(N * density ** (k / n)) for the paper's schedule."""
        assert self.steps is not None
        if step == self.steps:
            return self.keep
        begin, size = count(self.start) / self.network.size, self.network.size
        return max(self.keep, round(size * begin * self.schedule(step, self.steps, self.density / begin)))

    def allocate(
        self, scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int,
        shield: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Masks of `keep` candidates by the scope; a shield stays in any case, by default that of the run."""
        return allocate(self.network, self.scope, scores, candidates, keep, self.shield if shield is None else shield)


def checked_run(
    model: nn.Module,
    example: Any,
    *,
    compression: float | None = None,
    density: float | None = None,
    score: str | Score = "synflow",
    steps: int | None = None,
    schedule: str | Schedule | None = None,
    margin: float = 0.5,
    guard: bool | None = None,
    scope: str | Scope = "global",
    data: Iterable[Batch] | None = None,
    loss: Loss = F.cross_entropy,
    select: Select = None,
    protect: str | Iterable[str] = (),
    masks: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    engine: str = "fast",
    progress: bool = False,
) -> PruningRun:
    """Check all settings; this is the one list of them.

    compression, density: one of them; density is the share of weights that stays, compression is 1 / density.
    score: a name in `synflow.SCORES` or a function (network, masks) -> scores.
    steps: by default 100 for flow scores, 10 for FORCE, else one.
    schedule: how density falls over the steps, a name in `synflow.SCHEDULES` or a function (step, steps, density).
    margin: the largest share of the flow that a step of the certified schedule removes, between 0 and 1.
    guard: True keeps every layer alive, whatever the score. For a flow score, a step that would kill a layer is split,
        or a skeleton is protected: few weights that keep every layer alive. For other scores that is done at once, and
        `masks.about` tells what it cost. False is the method to the letter. By default `balanced` is guarded like this,
        the other flow scores split a step that would remove all the flow, and all others are not guarded.
    scope: which weights compete, a name in `synflow.SCOPES` or a function (scores, candidates, keep) -> masks.
    data, loss: batches (inputs, targets) and a loss function for the scores that need them.
    select, protect: which parameters may be pruned, and patterns of names that may not (see `synflow.prunable`).
    masks: start from these; by default from the masks attached to the model, else from all weights.
    seed: for scores that draw random numbers, and for models that do.
    engine: "fast", or "plain": Algorithm 1 as the paper writes it down, slower, with the same masks in float64.
    progress: show a progress bar.
    """
    function: Score = choose("score", score, SCORES, SCORE_FORM)
    fall: Schedule = choose("schedule", exponential if schedule is None else schedule, SCHEDULES, SCHEDULE_FORM)
    where: Scope = choose("scope", scope, SCOPES, SCOPE_FORM)
    engine_named(engine)
    check_flag("progress", progress)
    margin, steps, seed = checked_margin(margin), checked_steps(steps), checked_seed(seed)
    if guard is not None and not isinstance(guard, bool):
        raise SynflowError(f"guard must be True, False or None (by the score), got {brief(guard)}")
    traits = traits_of(function)
    guarded = traits.is_flow if guard is None else guard
    if fall is certified and not traits.is_flow:
        raise _needs_flow(score)
    target = target_density(compression, density)
    network = open_for(model, example, score, select, protect, data, loss, seed)
    start = full_masks(attached(model) or None if masks is None else masks, network.weights)
    keep = round(network.size * target)
    check_target(network, keep, count(start), target)
    if traits.needs_data:
        _ = network.batches  # missing data is an error before the first step
    check_reachable(network, start, keep, strict=guarded and traits.is_flow)
    if steps is None and fall is not certified:
        steps = traits.steps
    about = {
        "method": _name(score), "compression": network.size / keep, "schedule": _name(schedule or "exponential"),
        "steps": steps, "scope": _name(scope), "seed": seed, "guard": guarded, "margin": margin,
        "weights": network.size, "kept": keep, "fingerprint": fingerprint(model), "version": __version__,
    }  # fmt: skip
    # The union bound does not hold for balanced scores: their certified schedule rests on live layers alone.
    by_layers = (guarded and (guard is True or traits.balanced)) or (fall is certified and traits.balanced)
    shield = path_to_keep(network, start, keep) if guarded and not by_layers else None
    early = by_layers and (not traits.is_flow or keep <= TIGHT * len(network.weights))
    skeleton = None
    if early:
        # With the statistics that the run will see: its guard goes on with what the skeleton has recorded.
        with normalised(network) if traits.balanced else nullcontext():
            skeleton = find_skeleton(network, start, keep)
    return PruningRun(
        network, function, fall, where, steps, start, target, keep, margin, guarded, by_layers, engine, progress,
        about, shield, skeleton,
    )  # fmt: skip


def _needs_flow(score: str | Score) -> SynflowError:
    flows = ", ".join(repr(name) for name, row in SCORES.items() if traits_of(row).is_flow)
    return SynflowError(
        f"the certified schedule follows the flow, so it needs one of the scores {flows}, "
        f"got {score!r}; choose another schedule for it"
    )


def with_settings(door: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Let a function of a checked run take all the settings by keyword; `help` shows each of them."""

    def decorate(function: Callable[[T], R]) -> Callable[P, R]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(door(*args, **kwargs))

        returns = inspect.signature(function).return_annotation
        run.__signature__ = inspect.signature(door).replace(return_annotation=returns)  # type: ignore[attr-defined]
        run.__annotations__ = {**door.__annotations__, "return": returns}
        del run.__wrapped__
        return run

    return decorate


def open_for(
    model: nn.Module, example: Any, score: str | Score, select: Select, protect: str | Iterable[str],
    data: Iterable[Batch] | None, loss: Loss, seed: int,
) -> Network:  # fmt: skip
    """Open a network for a score, so that errors name it."""
    check_kinds(loss, data)
    return open_network(
        model, example, select=select, protect=protect, data=data, loss=loss, seed=checked_seed(seed),
        score_name=f"score {_name(score)!r}",
    )  # fmt: skip


def _name(value: str | Callable[..., Any]) -> str:
    """The name of a score, schedule or scope; with the arguments that `functools.partial` fixed."""
    if isinstance(value, partial):
        return f"{_name(value.func)}({', '.join(f'{key}={brief(given)}' for key, given in value.keywords.items())})"
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
