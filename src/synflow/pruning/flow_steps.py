"""The steps of the flow scores: measure what is left, let the lightest go, prove that a path stays, and again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from torch import Tensor

from ..engine.fast import Survivors
from ..engine.select_lightest import Lightest, Scored, lightest_weights
from ..errors import SynflowError
from ..flow.dispatch import Arithmetic
from ..flow.measure import Measurement, measure
from ..flow.paths import connected, fewest_weights, repeats, shortest_path
from ..masks.results import Step
from ..support.chunked import count, total_score
from ..support.memory import give_back
from .safe_removal import BOLD, ROUNDING, Removal, StuckError, remove
from .schedules import certified
from .scopes import global_scope
from .settings import Plan, allocate

# Runs of no more steps than this are through before a recorded measurement would pay.
FEW = 3

# Of networks with so many weights what was freed is given back to the system after each step.
LARGE = 1 << 24

Rescue = Callable[..., Iterator[dict[str, Tensor]]]


def flow_steps(plan: Plan, hold: bool) -> Iterator[Step]:
    """Each step of a run. Without `hold`, steps come without scores, and without masks but for the last."""
    try:
        yield from _certified(plan, hold) if plan.schedule is certified else _fixed(plan, hold)
    except StuckError as stuck:
        raise SynflowError(
            f"pruning stopped at {stuck.kept} of {plan.network.size} weights, not {plan.keep} as asked for: each that "
            "the scope lets go lies on every path that is left; try scope='global' or a lower compression"
        ) from stuck


def _fixed(plan: Plan, hold: bool) -> Iterator[Step]:
    """A step per density of the schedule, in parts where the whole might remove all the flow."""
    assert plan.steps is not None
    assert plan.power is not None
    left = Survivors(plan.network, plan.start, plan.power, repeating=plan.steps > FEW)
    size, rescue = plan.network.size, _rescuer(plan)
    begin = left.count / size
    for index in range(1, plan.steps + 1):
        share = plan.schedule(index, plan.steps, plan.keep / size / begin)
        keep = plan.keep if index == plan.steps else min(left.count, max(plan.keep, round(size * begin * share)))
        substeps, lost, complete, log2 = 0, 0.0, False, 0.0
        scores: dict[str, Tensor] = {}
        while not complete:
            flow, scored = _measured(plan, left, plan.steps - index + 1, keep)
            if substeps == 0:
                log2 = flow.log2
                scores = left.whole(scored.whole()) if hold else {}
            part, complete = _part(plan, left, flow, scored, keep, rescue)
            substeps, lost = substeps + 1, part if math.isnan(part) else max(lost, part)
            del flow, scored  # before the next ones are made: gradients of whole layers may hang on them
            if size >= LARGE:
                give_back()
        last = index == plan.steps
        masks = left.whole_masks(last) if hold or last else {}
        yield Step(index, keep / size, keep, log2, lost, substeps, masks, scores)


def _part(
    plan: Plan, left: Survivors, flow: Measurement, scored: Scored, keep: int, rescue: Rescue
) -> tuple[float, bool]:
    """Remove what a step asks for, or part of it: the share of the flow that went, and whether that was all."""
    number = left.count - keep
    going = _light(plan, left, flow, scored, number)
    proved = not (flow.had_shifts or flow.loose) and going is not None and going.total < flow.value * (1.0 - ROUNDING)
    if going is not None and plan.guard and not proved:
        if flow.loose or repeats(plan.network):
            # The bound is timid or says nothing here; a path that is found is as good a proof.
            share = _tried(left, flow, scored, going)
            if share is not None:
                return share, True
            going = None
        else:
            bound, weighed = _bound(left, flow, scored)
            lost = going.total if weighed is scored else weighed.total(scored.masks_without(going))
            if not lost < bound * (1.0 - ROUNDING):
                some = _light(plan, left, flow, weighed, number, plan.margin * bound)
                if some is not None and some.number + left.idle >= number // BOLD > 0:
                    complete = some.number + left.idle == number
                    left.drop(some, weighed)
                    return some.total / bound, complete
                going = None
    if going is not None:
        left.drop(going, scored)
        return going.total / flow.value, True
    removal = _careful(plan, left, flow, scored, keep, always=False, rescue=rescue)
    return removal.pruned_fraction, removal.complete


def _certified(plan: Plan, hold: bool) -> Iterator[Step]:
    """Steps as large as the union bound allows at the margin, down to the wanted count."""
    assert plan.power is not None
    left, size, index = Survivors(plan.network, plan.start, plan.power), plan.network.size, 0
    while left.count > plan.keep or index == 0:
        if plan.steps is not None and index == plan.steps:
            raise SynflowError(
                f"{plan.steps} certified steps at margin {plan.margin} leave {left.count} of {size} weights, not yet "
                f"{plan.keep}; allow more steps (without a number of steps there is no limit) or a larger margin"
            )
        index += 1
        flow, scored = _measured(plan, left)
        scores = left.whole(scored.whole()) if hold else {}
        bound, weighed = _bound(left, flow, scored)
        going = _light(plan, left, flow, weighed, left.count - plan.keep, plan.margin * bound)
        if going is not None and not flow.loose and (going.number or left.count == plan.keep):
            left.drop(going, weighed)
            part = going.total / bound
        else:
            part = _careful(plan, left, flow, scored, plan.keep, always=True).pruned_fraction
        last = left.count <= plan.keep
        masks = left.whole_masks(last) if hold or last else {}
        yield Step(index, left.count / size, left.count, flow.log2, part, 1, masks, scores)


def _measured(
    plan: Plan, left: Survivors, ahead: float = math.inf, keep: int | None = None
) -> tuple[Measurement, Scored]:
    """The flow of what is left, with so many measurements ahead; so many weights are to be kept, if that is known."""
    left.shrink(ahead)
    simply = keep is not None and plan.scope is global_scope and plan.shield is None
    flow, scored = left.measure(going=left.count - keep if simply and keep is not None else 0)
    if plan.guard and not flow.value > 0:
        raise SynflowError(
            f"no flow is left at {left.count} of {plan.network.size} weights: the masks or the model have no path "
            "from an input to an output"
        )
    return flow, scored


def _light(
    plan: Plan, left: Survivors, flow: Measurement, scored: Scored, number: int, budget: float = math.inf
) -> Lightest | None:
    """The lightest weights of all, where the plan simply lets them go; the idle ones, which weigh nothing, first."""
    if plan.scope is not global_scope or plan.shield is not None or not flow.value > 0:
        return None
    if number < left.idle:
        return None
    return lightest_weights(scored, left.count - left.idle, number - left.idle, budget)


def _bound(left: Survivors, flow: Measurement, scored: Scored) -> tuple[float, Scored]:
    """The flow from the inputs alone, and scores to weigh with: as long as less of them goes, a path is left.

    What biases add to the flow starts at no input. They add to scores as well, which errs on the safe side, but for
    scores behind a maximum or a divisor, which are then taken anew without them.
    """
    if not flow.had_shifts:
        return flow.value, scored
    bare, weighed = left.measure(shifts=False, gradients=flow.bent)
    if flow.bent or not bare.value > 0:
        return bare.value, weighed
    return math.ldexp(bare.value, bare.exponent - flow.exponent), scored


def _tried(left: Survivors, flow: Measurement, scored: Scored, going: Lightest) -> float | None:
    """Let the lightest weights go if a path is found afterwards, else as many by a flow that no gate counts twice.

    The share of the flow that went, or None where neither leaves a path.
    """
    number = going.number
    for shared in (False, True):
        ranked = scored
        if shared:
            ranked = left.measure(arithmetic=Arithmetic(shared=True))[1]
            going = lightest_weights(ranked, left.count - left.idle, number)
        if not shared and going.pieces is not None:
            # Tried on the weights themselves, which come back if no path is left: no other masks are held.
            taken = ranked.take(going)
            if connected(left.small, left.magnitudes):
                left.drop(going, ranked)
                return going.total / flow.value
            ranked.put_back(going, taken)
            continue
        masks = ranked.masks_without(going)
        if connected(left.small, masks):
            lost = scored.total(masks) if shared else going.total
            left.drop(going, ranked)
            return lost / flow.value
    return None


def _careful(
    plan: Plan, left: Survivors, flow: Measurement, scored: Scored, keep: int, always: bool,
    rescue: Rescue | None = None,
) -> Removal:  # fmt: skip
    """A step on whole masks and scores: any scope, a shield, or a removal that has to be looked at twice."""
    masks = left.whole_masks()
    flow = dataclasses.replace(flow, scores=left.whole(scored.whole()))
    again = partial(allocate, plan, candidates=masks, keep=keep)
    wanted = again(flow.scores)
    if not plan.guard and not always:
        going = {name: masks[name] & ~wanted[name] for name in masks}
        lost = total_score(flow.scores, going) / flow.value if flow.value > 0 else math.nan
        removal = Removal(wanted, lost, complete=True)
    else:
        bound = flow
        if flow.had_shifts:
            bare, weighed = left.measure(shifts=False)
            bound = dataclasses.replace(bare, scores=left.whole(weighed.whole()))
        anywhere = plan.scope is global_scope
        around = partial(rescue, masks=masks, keep=keep) if rescue is not None and anywhere else None
        removal = remove(
            plan.network, masks, wanted, bound, margin=plan.margin, always=always, allocate=again, anywhere=anywhere,
            rescue=around,
        )  # fmt: skip
    left.replace(removal.masks)
    return removal


def _rescuer(plan: Plan) -> Rescue:
    """Other masks of the wanted size, for when the lightest weights hold the last path.

    Weights that a term meets once rank below those that it meets many times (before gates, in attention). So rank by a
    flow that the sides of a gate share, which no layer has more of than another; or else keep one path in any case. The
    path is looked for again only when it has been cut.
    """
    path: dict[str, Tensor] = {}

    def others(masks: Mapping[str, Tensor], keep: int) -> Iterator[dict[str, Tensor]]:
        shared = measure(plan.network, masks, power=plan.power or 1, arithmetic=Arithmetic(shared=True)).scores
        yield allocate(plan, shared, masks, keep)
        if (fewest_weights(plan.network, masks) or 0) > 4 * len(masks):
            return
        if not path or any(bool((path[name] & ~masks[name]).any()) for name in path):
            path.update(shortest_path(plan.network, masks, heavy=True))
        if count(path) <= keep:
            shielded = {name: score.masked_fill(path[name], math.inf) for name, score in shared.items()}
            yield allocate(plan, shielded, masks, keep)

    return others
