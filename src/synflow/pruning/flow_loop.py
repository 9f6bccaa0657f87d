"""The steps of the flow scores: measure the flow, remove the lightest weights so that a path stays, and repeat.

An engine measures, ranks and removes (engine.py). A guard decides how much is removed and proves that a path stays
(safe_removal.py), or that every layer stays alive (live_layers.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext

from torch import Tensor

from ..errors import SynflowError
from ..flow.normalised import normalised
from ..masks.results import Step
from .engine import Engine, StepScores
from .live_layers import LayerGuard, tell_given_up
from .safe_removal import PathGuard, StuckError
from .schedules import certified
from .settings import PruningRun


def flow_steps(run: PruningRun, hold: bool) -> Iterator[Step]:
    """Each step of a run. Without `hold`, steps have no scores, and only the last one has masks."""
    with normalised(run.network) if run.traits.balanced else nullcontext(False) as spread:
        engine = run.new_engine(spread)
        needed = engine.live_layers() if run.guard_layers else frozenset()
        guard = LayerGuard(run, engine, needed) if needed else PathGuard(run, engine)
        try:
            yield from (_certified if run.schedule is certified else _fixed)(run, engine, guard, hold)
        except StuckError as stuck:
            raise SynflowError(
                f"pruning stopped at {stuck.kept} of {run.network.size} weights, not {run.keep} as asked for: each "
                "that the scope lets go lies on every path that is left; try scope='global' or a lower compression"
            ) from stuck
        if isinstance(guard, LayerGuard):
            tell_given_up(run.about, guard.skeleton, needed, engine.live_layers())
        run.about.update(engine=engine.name, measurements=engine.measurements)
        if engine.fallbacks:
            run.about["fallbacks"] = "; ".join(f"{part}: {reason}" for part, reason in engine.fallbacks.items())


def _fixed(run: PruningRun, engine: Engine, guard: PathGuard | LayerGuard, hold: bool) -> Iterator[Step]:
    """A step per density of the schedule, in parts where the guard does not allow the whole."""
    assert run.steps is not None
    for index in range(1, run.steps + 1):
        keep = min(engine.count, run.kept_after(index))
        substeps, lost, complete, log2 = 0, 0.0, False, 0.0
        held: dict[str, Tensor] = {}
        while not complete:
            scores = _measured(run, engine)
            if substeps == 0:
                log2, held = scores.flow.log2, scores.whole() if hold else {}
            part, complete = guard.remove(scores, keep)
            substeps, lost = substeps + 1, part if math.isnan(part) else max(lost, part)
            del scores  # before the next measurement: they may hold gradients of whole layers
        masks = engine.masks() if hold or index == run.steps else {}
        yield Step(index, keep / run.network.size, keep, log2, lost, substeps, masks, held)


def _certified(run: PruningRun, engine: Engine, guard: PathGuard | LayerGuard, hold: bool) -> Iterator[Step]:
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
        part = guard.remove_by_margin(scores)
        masks = engine.masks() if hold or engine.count <= run.keep else {}
        yield Step(index, engine.count / size, engine.count, log2, part, 1, masks, held)


def _measured(run: PruningRun, engine: Engine) -> StepScores:
    """The scores of the weights that are left; a guarded run has to have a path."""
    scores = engine.measure()
    if run.guard and not scores.flow.value > 0:
        raise SynflowError(
            f"no flow is left at {engine.count} of {run.network.size} weights: the masks or the model have no path "
            "from an input to an output"
        )
    return scores
