"""The pruning loop: score, allocate, mask, and again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..errors import PruningInterrupt, choose
from ..masks.checks import full_masks
from ..masks.results import Masks, Step, StepRecord
from ..network.private_copy import Batch, Loss
from ..network.selection import Select
from ..support.chunked import count
from .flow_steps import flow_steps
from .schedules import Schedule, certified
from .scopes import Scope
from .scores import REVIVES, SCORES, Score
from .settings import Plan, allocate, make_plan, open_for

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
    for step in _shown(plan, progress, hold=False):
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
    return _shown(plan, progress, hold=True)


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
    given = None if masks is None else full_masks(masks, network.weights)
    return function(network, given)


def _shown(plan: Plan, progress: bool, hold: bool) -> Iterator[Step]:
    """The steps, with a progress bar on request; an interrupt tells how far they came."""
    total = None if plan.schedule is certified else plan.steps
    done, density = 0, count(plan.start) / plan.network.size
    with tqdm(total=total, disable=not progress, desc=f"prune ({plan.about['method']})", unit="step") as bar:
        try:
            for step in _steps(plan, hold):
                done, density = step.index, step.density
                flow = "" if step.flow_log2 is None else f", flow 2^{step.flow_log2:.1f}"
                bar.set_postfix_str(f"density {step.density:.4g}{flow}")
                bar.update()
                yield step
        except KeyboardInterrupt as interrupt:
            steps = f"{done} steps" if total is None else f"{done} of {total} steps"
            raise PruningInterrupt(f"{steps}, at density {density:.4g}") from interrupt


def _steps(plan: Plan, hold: bool) -> Iterator[Step]:
    if plan.power is not None:
        yield from flow_steps(plan, hold)
        return
    assert plan.steps is not None
    masks, size = plan.start, plan.network.size
    begin = count(masks) / size
    for index in range(1, plan.steps + 1):
        share = plan.schedule(index, plan.steps, plan.keep / size / begin)
        keep = plan.keep if index == plan.steps else min(count(masks), max(plan.keep, round(size * begin * share)))
        scores = plan.score(plan.network, masks)
        masks = allocate(plan, scores, plan.start if plan.score in REVIVES else masks, keep)
        yield Step(index, keep / size, keep, None, None, 1, masks, scores)
