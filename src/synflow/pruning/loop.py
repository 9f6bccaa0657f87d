"""The public functions `prune`, `iterate` and `score`, and the loop of the scores that have no flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..errors import PruningInterrupt, SynflowError, choose
from ..masks.checks import full_masks
from ..masks.results import Masks, Step
from ..network.private_copy import Batch, Loss
from ..network.selection import Select
from ..support.chunked import count
from ..support.torch_modes import without_autocast
from .flow_loop import flow_steps
from .live_layers import tell_given_up
from .schedules import certified
from .scopes import difference
from .scores import SCORE_FORM, SCORES, Score
from .settings import PruningRun, checked_run, open_for, with_settings


@with_settings(checked_run)
def prune(run: PruningRun) -> Masks:
    """Masks (True = kept) that keep exactly `round(N * density)` of the N prunable weights; the model is untouched.

    `example` is a tensor, a tuple of positional or a dict of keyword arguments of `model.forward`; data-free scores
    look at its shapes and types only. `data` is an iterable of `(inputs, targets)` for the scores that need it. By
    default scores of a flow, `ntk_sap` and `px` take 100 exponential steps, `force` 10, every other score one. `guard`
    splits a step that would cut the last path; under `balanced`, and under any score with `guard=True`, it keeps every
    layer alive as long as the count allows it. `guard=False` is the method of its paper to the letter.
    `synflow.pruning.settings.checked_run` describes each setting.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    >>> masks = prune(model, torch.ones(1, 10), compression=10)
    >>> sum(int(mask.sum()) for mask in masks.values())
    30
    """
    records, last = [], run.start
    for step in _shown(run, hold=False):
        records.append(step.record)
        last = step.masks
    return Masks(last, run.about, records)


@with_settings(checked_run)
def iterate(run: PruningRun) -> Iterator[Step]:
    """The steps of `prune`, one by one, with masks, scores and flow; the arguments are the same and checked at once.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    >>> [step.kept for step in iterate(model, torch.ones(1, 10), compression=100, steps=2)]
    [30, 3]
    """
    return _shown(run, hold=True)


@without_autocast
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
    function: Score = choose("score", score, SCORES, SCORE_FORM)
    network = open_for(model, example, score, select, protect, data, loss, seed)
    given = None if masks is None else full_masks(masks, network.weights)
    return function(network, given)


def _shown(run: PruningRun, hold: bool) -> Iterator[Step]:
    """The steps of a run, with a progress bar on request; an interrupt says how far the run came."""
    total = None if run.schedule is certified else run.steps
    done, density = 0, count(run.start) / run.network.size
    with tqdm(total=total, disable=not run.progress, desc=f"prune ({run.about['method']})", unit="step") as bar:
        try:
            for step in flow_steps(run, hold) if run.traits.is_flow else _scored_steps(run):
                done, density = step.index, step.density
                flow = "" if step.flow_log2 is None else f", flow 2^{step.flow_log2:.1f}"
                bar.set_postfix_str(f"density {step.density:.4g}{flow}")
                bar.update()
                yield step
        except KeyboardInterrupt as interrupt:
            steps = f"{done} steps" if total is None else f"{done} of {total} steps"
            raise PruningInterrupt(f"{steps}, at density {density:.4g}") from interrupt


def _scored_steps(run: PruningRun) -> Iterator[Step]:
    """The steps of a score without a flow; where they are guarded, a skeleton stays."""
    assert run.steps is not None
    masks, size, skeleton, shield = run.start, run.network.size, run.skeleton, None
    for index in range(1, run.steps + 1):
        keep = min(count(masks), run.kept_after(index))
        candidates, scores = run.start if run.traits.revives else masks, without_autocast(run.score)(run.network, masks)
        if skeleton is not None:
            if not skeleton.shrink_to(keep):
                raise SynflowError(
                    f"the guard stopped at {skeleton.size} of {size} weights, not {keep} as asked for: each lies on "
                    "every path that is left; ask for a lower compression, or guard=False"
                )
            shield = skeleton.masks()
        masks = run.allocate(scores, candidates, keep, shield)
        if skeleton is not None and index == run.steps:
            by_guard = difference(masks, run.allocate(scores, candidates, keep))
            run.about.update(skeleton=skeleton.size, kept_by_guard=count(by_guard))
            tell_given_up(run.about, skeleton, skeleton.layers, skeleton.needed)
        yield Step(index, keep / size, keep, None, None, 1, masks, scores)
