"""The steps of the flow scores: measure what is left, let the lightest go, prove that a path stays, and again.

Everything is asked of an engine (engine.py); this file holds the order of the questions and the proofs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import Tensor

from ..errors import SynflowError
from ..flow.measure import Measurement, measure
from ..flow.normalised import normalised
from ..flow.passes import SHARED, WITHOUT_SHIFTS
from ..flow.paths import fewest_weights, repeats, shortest_path
from ..masks.results import Step
from ..support.chunked import count, total_score
from .allocation import allocate
from .engine import Engine, Removal, StepScores
from .live_layers import LayerGuard, tell_given_up
from .safe_removal import BOLD, ROUNDING, Removed, StuckError, remove_safely
from .schedules import certified
from .scopes import global_scope
from .settings import PruningRun

Rescue = Callable[..., Iterator[dict[str, Tensor]]]


def flow_steps(run: PruningRun, hold: bool) -> Iterator[Step]:
    """Each step of a run. Without `hold`, steps come without scores, and without masks but for the last."""
    with normalised(run.network) if run.traits.balanced else nullcontext(False) as spread:
        yield from _steps(run, run.new_engine(spread), hold)


def _steps(run: PruningRun, engine: Engine, hold: bool) -> Iterator[Step]:
    layers = LayerGuard(run, engine) if run.guard_layers else None
    layers = layers if layers is not None and layers.needed else None
    try:
        yield from (_certified if run.schedule is certified else _fixed)(run, engine, layers, hold)
    except StuckError as stuck:
        raise SynflowError(
            f"pruning stopped at {stuck.kept} of {run.network.size} weights, not {run.keep} as asked for: each that "
            "the scope lets go lies on every path that is left; try scope='global' or a lower compression"
        ) from stuck
    if layers is not None:
        tell_given_up(run.about, layers.skeleton, layers.needed, engine.live_layers())
    _tell(run.about, engine)


def _tell(about: dict[str, Any], engine: Engine) -> None:
    """Say which engine ran, and what it fell back from and why; text, for mask files."""
    about |= {"engine": engine.name, "measurements": engine.measurements}
    if engine.fallbacks:
        about["fallbacks"] = "; ".join(f"{part}: {reason}" for part, reason in engine.fallbacks.items())


def _fixed(run: PruningRun, engine: Engine, layers: LayerGuard | None, hold: bool) -> Iterator[Step]:
    """A step per density of the schedule, in parts where the whole might remove all the flow."""
    assert run.steps is not None
    size, rescue = run.network.size, _rescuer(run)
    for index in range(1, run.steps + 1):
        keep = min(engine.count, run.kept_after(index))
        substeps, lost, complete, log2 = 0, 0.0, False, 0.0
        held: dict[str, Tensor] = {}
        while not complete:
            scores = _measured(run, engine)
            if substeps == 0:
                log2, held = scores.flow.log2, scores.whole() if hold else {}
            part, complete = _part(run, engine, scores, keep, rescue, layers)
            substeps, lost = substeps + 1, part if math.isnan(part) else max(lost, part)
            del scores  # before the next ones are made: gradients of whole layers may hang on them
        masks = engine.masks() if hold or index == run.steps else {}
        yield Step(index, keep / size, keep, log2, lost, substeps, masks, held)


def _certified(run: PruningRun, engine: Engine, layers: LayerGuard | None, hold: bool) -> Iterator[Step]:
    """Steps as large as the union bound allows at the margin, down to the wanted count."""
    size, index = run.network.size, 0
    while engine.count > run.keep or index == 0:
        if run.steps is not None and index == run.steps:
            raise SynflowError(
                f"{run.steps} certified steps at margin {run.margin} leave {engine.count} of {size} weights, not yet "
                f"{run.keep}; allow more steps (without a number of steps there is no limit) or a larger margin"
            )
        index += 1
        scores = _measured(run, engine)
        log2, held = scores.flow.log2, scores.whole() if hold else {}
        bound, weighed = _bound(engine, scores)
        number, budget = engine.count - run.keep, run.margin * bound
        going = engine.lightest(weighed, number, budget) if run.is_global and layers is None else None
        if layers is not None:
            lost, _ = layers.remove(weighed, run.keep, budget)
            part = lost / bound if bound > 0 else math.nan
        elif going is not None and bound > 0 and not scores.flow.loose and (going.number or not number):
            part = going.total / bound
            engine.remove(going)
        else:
            part = _careful(run, engine, scores, run.keep, always=True).pruned_fraction
        masks = engine.masks() if hold or engine.count <= run.keep else {}
        yield Step(index, engine.count / size, engine.count, log2, part, 1, masks, held)


def _measured(run: PruningRun, engine: Engine) -> StepScores:
    """The scores of what is left; where a path is promised, there has to be one."""
    scores = engine.measure()
    if run.guard and not scores.flow.value > 0:
        raise SynflowError(
            f"no flow is left at {engine.count} of {run.network.size} weights: the masks or the model have no path "
            "from an input to an output"
        )
    return scores


def _part(
    run: PruningRun, engine: Engine, scores: StepScores, keep: int, rescue: Rescue, layers: LayerGuard | None
) -> tuple[float, bool]:
    """Remove what a step asks for, or part of it: the share of the flow that went, and whether that was all."""
    flow, number = scores.flow, engine.count - keep
    if layers is not None:
        lost, complete = layers.remove(scores, keep)
        return lost / flow.value, complete
    if not run.is_global or not flow.value > 0:
        removed = _careful(run, engine, scores, keep, always=False, rescue=rescue)
        return removed.pruned_fraction, removed.complete
    going = engine.lightest(scores, number)
    if not run.guard or _is_proved(flow, going):
        engine.remove(going)
        return going.total / flow.value, True
    found = _guarded(run, engine, scores, going, number)
    if found is not None:
        return found
    removed = _careful(run, engine, scores, keep, always=False, rescue=rescue)
    return removed.pruned_fraction, removed.complete


def _is_proved(flow: Measurement, going: Removal) -> bool:
    """Whether the union bound alone proves that a path stays."""
    return not (flow.had_shifts or flow.loose) and going.total < flow.value * (1.0 - ROUNDING)


def _guarded(
    run: PruningRun, engine: Engine, scores: StepScores, going: Removal, number: int
) -> tuple[float, bool] | None:
    """A removal that the bound does not prove: by a path that is found, or a smaller one; None where neither serves."""
    flow = scores.flow
    if flow.loose or repeats(run.network):
        # The bound is timid or says nothing here; a path that is found is as good a proof.
        share = _tried(engine, scores, going)
        return None if share is None else (share, True)
    bound, weighed = _bound(engine, scores)
    if not bound > 0:
        return None  # weights that are zero leave no flow from the inputs, so that the bound proves nothing
    if engine.weigh(going, weighed) < bound * (1.0 - ROUNDING):
        engine.remove(going)
        return going.total / flow.value, True
    some = engine.lightest(weighed, number, run.margin * bound)
    if some.number >= number // BOLD > 0:
        engine.remove(some)
        return some.total / bound, some.number == number
    return None


def _bound(engine: Engine, scores: StepScores) -> tuple[float, StepScores]:
    """The flow from the inputs alone, and scores to weigh with: as long as less of them goes, a path is left.

    What biases add to the flow starts at no input. They add to scores as well, which errs on the safe side, but for
    scores behind a maximum or a divisor, which are then taken anew without them.
    """
    flow = scores.flow
    if not flow.had_shifts:
        return flow.value, scores
    bare = engine.measure(WITHOUT_SHIFTS, gradients=flow.bent)
    if flow.bent:
        return bare.flow.value, bare
    return math.ldexp(bare.flow.value, bare.flow.exponent - flow.exponent), scores


def _tried(engine: Engine, scores: StepScores, going: Removal) -> float | None:
    """Remove the lightest weights if a path is found afterwards, else as many by a flow that no gate counts twice.

    The share of the flow that went, or None where neither leaves a path.
    """
    if engine.leaves_a_path(going):
        engine.remove(going)
        return going.total / scores.flow.value
    other = engine.lightest(engine.measure(SHARED), going.number)
    if not engine.leaves_a_path(other):
        return None
    lost = engine.weigh(other, scores)
    engine.remove(other)
    return lost / scores.flow.value


def _careful(
    run: PruningRun, engine: Engine, scores: StepScores, keep: int, always: bool, rescue: Rescue | None = None
) -> Removed:
    """A step on whole masks and scores: any scope, a shield, or a removal that has to be looked at twice."""
    masks = engine.masks()
    flow = dataclasses.replace(scores.flow, scores=scores.whole())
    again = partial(_allocate, run, candidates=masks, keep=keep)
    wanted = again(flow.scores)
    if not run.guard and not always:
        going = {name: masks[name] & ~wanted[name] for name in masks}
        lost = total_score(flow.scores, going) / flow.value if flow.value > 0 else math.nan
        removed = Removed(wanted, lost, complete=True)
    else:
        bound = flow
        if flow.had_shifts:
            bare = engine.measure(WITHOUT_SHIFTS)
            bound = dataclasses.replace(bare.flow, scores=bare.whole())
        anywhere = run.scope is global_scope
        around = partial(rescue, masks=masks, keep=keep) if rescue is not None and anywhere else None
        removed = remove_safely(
            run.network, masks, wanted, bound, margin=run.margin, always=always, allocate=again, anywhere=anywhere,
            rescue=around,
        )  # fmt: skip
    engine.keep_only(removed.masks)
    return removed


def _rescuer(run: PruningRun) -> Rescue:
    """Other masks of the wanted size, for when the lightest weights hold the last path.

    Weights that a term meets once rank below those that it meets many times (before gates, in attention). So rank by a
    flow that the sides of a gate share, which no layer has more of than another; or else keep one path in any case. The
    path is looked for again only when it has been cut.
    """
    path: dict[str, Tensor] = {}

    def others(masks: Mapping[str, Tensor], keep: int) -> Iterator[dict[str, Tensor]]:
        shared = measure(run.network, masks, power=run.traits.flow_power or 1, options=SHARED).scores
        yield _allocate(run, shared, masks, keep)
        if (fewest_weights(run.network, masks) or 0) > 4 * len(masks):
            return
        if not path or any(bool((path[name] & ~masks[name]).any()) for name in path):
            path.update(shortest_path(run.network, masks, heavy=True))
        if count(path) <= keep:
            shielded = {name: score.masked_fill(path[name], math.inf) for name, score in shared.items()}
            yield _allocate(run, shielded, masks, keep)

    return others


def _allocate(
    run: PruningRun, scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int
) -> dict[str, Tensor]:
    """Masks by the run's scope; its path stays in any case."""
    return allocate(run.network, run.scope, scores, candidates, keep, run.shield)
