"""The pruning loop: score, allocate, mask, and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from ._version import __version__
from .allocation import SCOPES, Scope, count, total_score
from .connectivity import fewest_weights, shortest_path
from .errors import SynflowError, choose
from .guard import StuckError, input_flow, remove
from .linearization import NoRuleError
from .masks import attached, fingerprint
from .measurement import Measurement, measure
from .network import Batch, Loss, Network, open_network
from .schedules import SCHEDULES, Schedule, certified, exponential
from .scores import DEFAULT_STEPS, FLOW_POWER, REVIVES, SCORES, Score
from .selection import Select


@dataclass(frozen=True)
class StepRecord:
    """What a step did: `pruned_fraction` is the pruned flow over the flow; below one, a path provably survives."""

    index: int
    density: float
    kept: int
    flow_log2: float | None
    pruned_fraction: float | None
    substeps: int

    @property
    def held(self) -> bool | None:
        """Whether the condition of Theorem 3 held: less flow was pruned than there was."""
        return None if self.pruned_fraction is None else self.pruned_fraction < 1.0


@dataclass(frozen=True)
class Step(StepRecord):
    """A step with the masks after it and the scores it was decided by."""

    masks: dict[str, Tensor]
    scores: dict[str, Tensor]

    @property
    def record(self) -> StepRecord:
        """The step without its tensors."""
        return StepRecord(self.index, self.density, self.kept, self.flow_log2, self.pruned_fraction, self.substeps)


class Masks(dict[str, Tensor]):
    """A dict of masks that remembers how it was made: `about` (settings) and `steps` (one record per step)."""

    def __init__(
        self, masks: Mapping[str, Tensor], about: Mapping[str, Any] | None = None, steps: Iterable[StepRecord] = ()
    ) -> None:
        super().__init__(masks)
        self.about: dict[str, Any] = dict(about or {})
        self.steps: tuple[StepRecord, ...] = tuple(steps)


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
    try:
        records, last = _run_all(plan, progress)
    except StuckError:
        # The flow has led onto a path with more weights than are to stay: start again, keeping a shortest path.
        records, last = _run_all(plan.shielded(), progress)
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

    >>> model = nn.Linear(2, 1, bias=False)
    >>> nn.init.constant_(model.weight, -3.0) is model.weight
    True
    >>> print(score(model, torch.zeros(1, 2))["weight"])
    tensor([[3., 3.]])
    """
    function: Score = choose("score", score, SCORES)
    network = _open(model, example, function, select, protect, data, loss, seed)
    given = None if masks is None else checked_masks(masks, network)
    return function(network, given)


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

    def shielded(self) -> Plan:
        """The same plan with one shortest path kept in any case."""
        values = {**vars(self), "shield": shortest_path(self.network, self.start)}
        return Plan(**values)


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
    network = _open(model, example, function, select, protect, data, loss, seed)
    start = checked_masks(attached(model) or None if masks is None else masks, network)
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
    return Plan(network, function, fall, where, steps, start, keep, margin, guard, about)


def _run_all(plan: Plan, progress: bool) -> tuple[list[StepRecord], dict[str, Tensor]]:
    records, last = [], plan.start
    for step in _shown(plan, progress):
        records.append(step.record)
        last = step.masks
    return records, last


def _shown(plan: Plan, progress: bool) -> Iterator[Step]:
    """The steps, with a progress bar on request."""
    total = None if plan.schedule is certified else plan.steps
    with tqdm(total=total, disable=not progress, desc=f"prune ({plan.about['method']})", unit="step") as bar:
        for step in _steps(plan):
            flow = "" if step.flow_log2 is None else f", flow 2^{step.flow_log2:.1f}"
            bar.set_postfix_str(f"density {step.density:.4g}{flow}")
            bar.update()
            yield step


def _steps(plan: Plan) -> Iterator[Step]:
    network, masks, size = plan.network, plan.start, plan.network.size
    begin = count(masks) / size
    if plan.schedule is certified:
        yield from _certified_steps(plan)
        return
    assert plan.steps is not None
    for index in range(1, plan.steps + 1):
        share = plan.schedule(index, plan.steps, plan.keep / size / begin)
        keep = plan.keep if index == plan.steps else min(count(masks), max(plan.keep, round(size * begin * share)))
        if plan.power is None:
            scores = _shielded(plan.score(network, masks), plan)
            candidates = plan.start if plan.score in REVIVES else masks
            masks = _allocated(plan, scores, candidates, keep)
            yield Step(index, keep / size, keep, None, None, 1, masks, scores)
            continue
        substeps, lost, complete = 0, 0.0, False
        first: Measurement | None = None
        while not complete:
            flow = measure(network, masks, power=plan.power)
            _check_flow(plan, flow, masks)
            first = first or flow
            wanted = _allocated(plan, _shielded(flow.scores, plan), masks, keep)
            if not plan.guard:
                going = {name: masks[name] & ~wanted[name] for name in masks}
                lost = total_score(flow.scores, going) / flow.value if flow.value > 0 else math.nan
                masks, complete = wanted, True
            else:
                bound = input_flow(network, masks, flow, plan.power)
                removal = remove(network, masks, wanted, bound, margin=plan.margin, always=False)
                masks, complete = removal.masks, removal.complete
                lost = max(lost, removal.pruned_fraction)
            substeps += 1
        assert first is not None
        yield Step(index, keep / size, keep, first.log2, lost, substeps, masks, first.scores)


def _certified_steps(plan: Plan) -> Iterator[Step]:
    network, masks, size, index = plan.network, plan.start, plan.network.size, 0
    assert plan.power is not None
    while count(masks) > plan.keep or index == 0:
        if plan.steps is not None and index == plan.steps:
            raise SynflowError(
                f"{plan.steps} certified steps at margin {plan.margin} leave {count(masks)} of {size} weights, not yet "
                f"{plan.keep}; allow more steps (steps=None sets no limit) or a larger margin"
            )
        index += 1
        flow = measure(network, masks, power=plan.power)
        _check_flow(plan, flow, masks)
        wanted = _allocated(plan, _shielded(flow.scores, plan), masks, plan.keep)
        bound = input_flow(network, masks, flow, plan.power)
        removal = remove(network, masks, wanted, bound, margin=plan.margin, always=True)
        masks = removal.masks
        kept = count(masks)
        yield Step(index, kept / size, kept, flow.log2, removal.pruned_fraction, 1, masks, flow.scores)


def _allocated(
    plan: Plan, scores: Mapping[str, Tensor], candidates: Mapping[str, Tensor], keep: int
) -> dict[str, Tensor]:
    _check_scores(scores, plan.network)
    masks = plan.scope(scores, candidates, keep)
    if count(masks) != keep:
        raise SynflowError(f"the scope kept {count(masks)} weights where {keep} were asked for")
    return masks


def _shielded(scores: dict[str, Tensor], plan: Plan) -> dict[str, Tensor]:
    """Scores with the shielded path above all others."""
    if plan.shield is None:
        return scores
    return {name: score.masked_fill(plan.shield[name], math.inf) for name, score in scores.items()}


def _open(
    model: nn.Module, example: Any, function: Score, select: Select, protect: str | Iterable[str],
    data: Iterable[Batch] | None, loss: Loss, seed: int,
) -> Network:  # fmt: skip
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
            f"compression {1 / density:g} of {network.size} weights leaves none; the most is {network.size}x"
        )
    if keep > start:
        raise SynflowError(
            f"{keep} of {network.size} weights are to stay but the given masks keep only {start}; pruned weights stay "
            f"pruned: ask for a compression of at least {network.size / start:g}"
        )


def _check_reachable(network: Network, masks: Mapping[str, Tensor], keep: int, strict: bool) -> None:
    """Refuse a compression at which no network of this architecture has a path."""
    # A path has a few weights per tensor; only a count near that needs the check.
    if keep > 64 * len(network.weights) and not strict:
        return
    try:
        fewest = fewest_weights(network, masks)
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


def checked_masks(masks: Mapping[str, Tensor] | None, network: Network) -> dict[str, Tensor]:
    """Masks for every prunable weight: all ones by default, the given ones if they fit."""
    full = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    if masks is None:
        return full
    unknown = sorted(set(masks) - set(full))
    if unknown:
        raise SynflowError(
            f"masks name {unknown[0]!r}, which is not among the prunable weights ({', '.join(list(full)[:3])}, ...); "
            "pass the same select and protect as when they were made"
        )
    for name, mask in masks.items():
        if mask.shape != full[name].shape:
            raise SynflowError(f"{name}: mask of shape {tuple(mask.shape)}, expected {tuple(full[name].shape)}")
        if mask.dtype != torch.bool:
            raise SynflowError(f"{name}: mask of type {mask.dtype}, expected torch.bool (True = kept)")
        full[name] = mask.to(full[name].device).clone()
    return full
