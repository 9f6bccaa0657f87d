"""The pruning loop: score, allocate, mask, and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from .allocation import Scope, global_scope
from .connectivity import fewest_weights, shortest_path
from .errors import SynflowError, choose
from .guard import StuckError, remove
from .measurement import Measurement, absolute, measure
from .network import Batch, Loss, Network
from .plans import Plan, checked_masks, make_plan, open_for
from .records import Masks, Step, StepRecord
from .schedules import Schedule, certified
from .scores import REVIVES, SCORES, Score
from .selection import Select
from .streams import count, total_score

__all__ = ["Masks", "Step", "StepRecord", "iterate", "prune", "score"]


def prune(
    model: nn.Module,
    example: Any,
    *,
    compression: float | None = None,
    density: float | None = None,
    score: str | Score = "synflow",
    steps: int | None = None,
    schedule: str | Schedule | None = None,
    margin: float = 0.5,
    guard: bool = True,
    scope: str | Scope = "global",
    data: Iterable[Batch] | None = None,
    loss: Loss = F.cross_entropy,
    select: Select = None,
    protect: str | Iterable[str] = (),
    masks: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Masks:
    """Masks (True = kept) that keep exactly `round(N * density)` of the N prunable weights; the model is untouched.

    `example` is a tensor, a tuple of positional or a dict of keyword arguments of `model.forward`; data-free scores
    look at its shapes and types only. `data` is an iterable of `(inputs, targets)` for the scores that need it. By
    default SynFlow takes 100 exponential steps and every other score one. `guard` splits a step of a flow score that
    would remove all the flow, so that no network collapses; `guard=False` is the paper's algorithm to the letter.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    >>> masks = prune(model, torch.ones(1, 10), compression=10)
    >>> sum(int(mask.sum()) for mask in masks.values())
    30
    """
    options: dict[str, Any] = dict(
        compression=compression, density=density, score=score, steps=steps, schedule=schedule, margin=margin,
        guard=guard, scope=scope, data=data, loss=loss, select=select, protect=protect, masks=masks, seed=seed,
    )  # fmt: skip
    plan = make_plan(model, example, **options)
    records, last = [], plan.start
    for step in _shown(plan, progress, reuse=True):
        records.append(step.record)
        last = step.masks
    return Masks(last, plan.about, records)


def iterate(
    model: nn.Module,
    example: Any,
    *,
    compression: float | None = None,
    density: float | None = None,
    score: str | Score = "synflow",
    steps: int | None = None,
    schedule: str | Schedule | None = None,
    margin: float = 0.5,
    guard: bool = True,
    scope: str | Scope = "global",
    data: Iterable[Batch] | None = None,
    loss: Loss = F.cross_entropy,
    select: Select = None,
    protect: str | Iterable[str] = (),
    masks: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Iterator[Step]:
    """The steps of `prune`, one by one, with masks, scores and flow; the arguments are the same and checked at once.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    >>> [step.kept for step in iterate(model, torch.ones(1, 10), compression=100, steps=2)]
    [30, 3]
    """
    plan = make_plan(
        model, example, compression=compression, density=density, score=score, steps=steps, schedule=schedule,
        margin=margin, guard=guard, scope=scope, data=data, loss=loss, select=select, protect=protect, masks=masks,
        seed=seed,
    )  # fmt: skip
    return _shown(plan, progress)


def score(
    model: nn.Module,
    example: Any,
    score: str | Score = "synflow",
    data: Iterable[Batch] | None = None,
    *,
    loss: Loss = F.cross_entropy,
    select: Select = None,
    protect: str | Iterable[str] = (),
    masks: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """One evaluation of a score, by parameter name; scores of a flow are in units of a power of two.

    >>> import torch
    >>> model = nn.Linear(2, 1, bias=False)
    >>> nn.init.constant_(model.weight, -3.0) is model.weight
    True
    >>> print(score(model, torch.zeros(1, 2))["weight"])
    tensor([[3., 3.]])
    """
    function: Score = choose("score", score, SCORES)
    network = open_for(model, example, function, select, protect, data, loss, seed)
    given = None if masks is None else checked_masks(masks, network)
    return function(network, given)


def _meter(plan: Plan, reuse: bool) -> Callable[..., Measurement]:
    """Measures the flow under masks that only ever lose weights: absolute weights are made once and thinned in place.

    With `reuse` the scores of a step overwrite those of the step before, so that no fresh memory is touched.
    """
    assert plan.power is not None
    magnitudes = absolute(plan.network, plan.start, plan.power)
    buffers: dict[str, Tensor] = {}

    def flow(masks: Mapping[str, Tensor], shifts: bool = True) -> Measurement:
        for name, magnitude in magnitudes.items():
            magnitude.mul_(masks[name])
        into = buffers if reuse and shifts else None
        return measure(plan.network, magnitudes=magnitudes, power=plan.power or 1, shifts=shifts, into=into)

    return flow


def _shown(plan: Plan, progress: bool, reuse: bool = False) -> Iterator[Step]:
    """The steps, with a progress bar on request."""
    total = None if plan.schedule is certified else plan.steps
    with tqdm(total=total, disable=not progress, desc=f"prune ({plan.about['method']})", unit="step") as bar:
        for step in _unstuck(plan, _steps(plan, reuse)):
            flow = "" if step.flow_log2 is None else f", flow 2^{step.flow_log2:.1f}"
            bar.set_postfix_str(f"density {step.density:.4g}{flow}")
            bar.update()
            yield step


def _unstuck(plan: Plan, steps: Iterator[Step]) -> Iterator[Step]:
    try:
        yield from steps
    except StuckError as stuck:
        raise SynflowError(
            f"pruning stopped at {stuck.kept} of {plan.network.size} weights, not {plan.keep} as asked for: each that "
            "the scope lets go lies on every path that is left; try scope='global' or a lower compression"
        ) from stuck


def _steps(plan: Plan, reuse: bool) -> Iterator[Step]:
    network, masks, size = plan.network, plan.start, plan.network.size
    begin = count(masks) / size
    if plan.schedule is certified:
        yield from _certified_steps(plan, reuse)
        return
    assert plan.steps is not None
    meter = _meter(plan, reuse) if plan.power is not None else None
    cautious = partial(remove, network, margin=plan.margin, anywhere=plan.scope is global_scope)
    rescue = _rescuer(plan)
    for index in range(1, plan.steps + 1):
        share = plan.schedule(index, plan.steps, plan.keep / size / begin)
        keep = plan.keep if index == plan.steps else min(count(masks), max(plan.keep, round(size * begin * share)))
        if meter is None:
            scores = plan.score(network, masks)
            candidates = plan.start if plan.score in REVIVES else masks
            masks = _allocated(plan, scores, candidates, keep)
            yield Step(index, keep / size, keep, None, None, 1, masks, scores)
            continue
        substeps, lost, complete = 0, 0.0, False
        first: Measurement | None = None
        while not complete:
            flow = meter(masks)
            _check_flow(plan, flow, masks)
            first = first or flow
            again = partial(_allocated, plan, candidates=masks, keep=keep)
            wanted = again(flow.scores)
            if not plan.guard:
                going = {name: masks[name] & ~wanted[name] for name in masks}
                lost = total_score(flow.scores, going) / flow.value if flow.value > 0 else math.nan
                masks, complete = wanted, True
            else:
                bound = meter(masks, shifts=False) if flow.had_shifts else flow
                around = partial(rescue, masks=masks, keep=keep) if plan.scope is global_scope else None
                removal = cautious(masks, wanted, bound, always=False, allocate=again, rescue=around)
                masks, complete = removal.masks, removal.complete
                lost = max(lost, removal.pruned_fraction)
            substeps += 1
        assert first is not None
        yield Step(index, keep / size, keep, first.log2, lost, substeps, masks, first.scores)


def _certified_steps(plan: Plan, reuse: bool) -> Iterator[Step]:
    network, masks, size, index = plan.network, plan.start, plan.network.size, 0
    meter = _meter(plan, reuse)
    cautious = partial(remove, network, margin=plan.margin, anywhere=plan.scope is global_scope)
    while count(masks) > plan.keep or index == 0:
        if plan.steps is not None and index == plan.steps:
            raise SynflowError(
                f"{plan.steps} certified steps at margin {plan.margin} leave {count(masks)} of {size} weights, not yet "
                f"{plan.keep}; allow more steps (steps=None sets no limit) or a larger margin"
            )
        index += 1
        flow = meter(masks)
        _check_flow(plan, flow, masks)
        again = partial(_allocated, plan, candidates=masks, keep=plan.keep)
        wanted = again(flow.scores)
        bound = meter(masks, shifts=False) if flow.had_shifts else flow
        removal = cautious(masks, wanted, bound, always=True, allocate=again)
        masks = removal.masks
        kept = count(masks)
        yield Step(index, kept / size, kept, flow.log2, removal.pruned_fraction, 1, masks, flow.scores)


def _rescuer(plan: Plan) -> Callable[..., dict[str, Tensor]]:
    """Allocates around one path of the current network; the path is looked for again only when it has been cut."""
    path: dict[str, Tensor] = {}

    def around(scores: Mapping[str, Tensor], masks: Mapping[str, Tensor], keep: int) -> dict[str, Tensor]:
        if (fewest_weights(plan.network, masks) or 0) > 4 * len(masks):
            return _allocated(plan, scores, masks, keep)
        if not path or any(bool((path[name] & ~masks[name]).any()) for name in path):
            path.update(shortest_path(plan.network, masks, heavy=True))
        if count(path) > keep:
            return _allocated(plan, scores, masks, keep)
        shielded = {name: score.masked_fill(path[name], math.inf) for name, score in scores.items()}
        return _allocated(plan, shielded, masks, keep)

    return around


def _allocated(
    plan: Plan, scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int
) -> dict[str, Tensor]:
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


def _check_flow(plan: Plan, flow: Measurement, masks: Mapping[str, Tensor]) -> None:
    if flow.value > 0 or not plan.guard:
        return
    raise SynflowError(
        f"no flow is left at {count(masks)} of {plan.network.size} weights: the masks or the model have no path from "
        "an input to an output"
    )


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
