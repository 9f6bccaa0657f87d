"""Limits of pruning: the maximum compression of an architecture, and the compression at which a method collapses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SynflowError, brief, choose, named
from ..flow.paths import connected, least_for_path
from ..masks.checks import full_masks
from ..network.private_copy import Batch, Loss, Network, open_network
from ..network.selection import Select
from ..pruning.checks import checked_steps
from ..pruning.loop import prune
from ..pruning.schedules import SCHEDULE_FORM, SCHEDULES, Schedule
from ..pruning.scopes import SCOPE_FORM, SCOPES, Scope
from ..pruning.scores import SCORE_FORM, SCORES, Score, traits_of
from ..pruning.settings import open_for
from ..pruning.skeleton import Skeleton, short_path
from ..support.chunked import count
from ..support.torch_modes import with_gradients


@dataclass(frozen=True)
class Limits:
    """The fewest weights of a network, with a path, and with every layer alive.

    `for_path` and `for_layers` are upper bounds: sizes of sets that were found. `path_bound` and `layers` are lower
    bounds: a weight in each layer that every path passes, and one in each layer. If the bounds are equal, they are the
    minimum; otherwise the minimum lies between them.
    """

    weights: int
    layers: int
    path_bound: int
    for_path: int
    for_layers: int

    @property
    def exact(self) -> bool:
        """Whether no smaller set keeps every layer alive."""
        return self.for_layers == self.layers

    def __str__(self) -> str:
        return (
            f"{self.weights:,} weights in {self.layers} layers that the forward pass reaches; a path needs "
            f"{_between(self.path_bound, self.for_path)}, every layer alive needs "
            f"{_between(self.layers, self.for_layers)}"
        )


def _between(least: int, found: int) -> str:
    return f"{found:,}" if least == found else f"between {least:,} and {found:,}"


@with_gradients
def limits(model: nn.Module, example: Any, *, select: Select = None, protect: str | Iterable[str] = ()) -> Limits:
    """The fewest weights that keep a path, and the fewest that keep every layer alive, or bounds on them.

    >>> print(limits(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), torch.ones(1, 10)))
    300 weights in 2 layers that the forward pass reaches; a path needs 2, every layer alive needs 2
    """
    network = open_network(model, example, select=select, protect=protect)
    bound = _least(network)
    everything = full_masks(None, network.weights)
    skeleton = Skeleton(network, everything)
    skeleton.thin_out()
    path = min(short_path(network), skeleton.masks(), key=count)
    if bound < count(path):
        empty = {name: torch.zeros_like(mask) for name, mask in everything.items()}
        vital = (not connected(network, everything | {name: empty[name]}) for name in path if bool(path[name].any()))
        bound = max(bound, sum(vital))
    return Limits(network.size, len(skeleton.layers), bound, count(path), skeleton.size)


def _least(network: Network) -> int:
    """A lower bound on the weights of a path; an error if there is no path."""
    least = least_for_path(network)
    if least is None:
        raise SynflowError("no path leads from an input to an output; check the model and the example")
    return least


@with_gradients
def max_compression(
    model: nn.Module, example: Any, *, select: Select = None, protect: str | Iterable[str] = ()
) -> float:
    """N over the fewest weights that keep a path: beyond it no network of this architecture has a path.

    In a chain of L layers this is N / L. Infinite if a path avoids every prunable weight. If `limits` has only bounds
    for a path, this uses the upper bound.

    >>> max_compression(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), torch.ones(1, 10))
    150.0
    """
    network = open_network(model, example, select=select, protect=protect)
    _least(network)
    fewest = count(short_path(network))
    return network.size / fewest if fewest else math.inf


def most_compression(network: Network) -> float:
    """An upper bound on `max_compression` that takes few passes: no larger compression keeps a path."""
    least = _least(network)
    return network.size / least if least else math.inf


@with_gradients
def critical_compression(
    model: nn.Module,
    example: Any,
    *,
    score: str | Score = "synflow",
    steps: int | None = None,
    schedule: str | Schedule | None = None,
    scope: str | Scope = "global",
    collapse: Literal["disconnected", "empty_layer"] = "disconnected",
    tolerance: float = 0.01,
    data: Iterable[Batch] | None = None,
    loss: Loss = F.cross_entropy,
    select: Select = None,
    protect: str | Iterable[str] = (),
    seed: int = 0,
) -> float:
    """The largest compression at which a method does not collapse the network, by bisection.

    Collapse means that no path remains, or with `collapse="empty_layer"` (the paper's layer-collapse) that some layer
    has no weight. Single-shot methods are scored once and bisected to the weight. Iterative methods run once per trial,
    until the answer is known within `tolerance` (relative). Flow scores run without their guard.
    """
    _check_search(collapse, tolerance)
    steps = checked_steps(steps)
    function: Score = choose("score", score, SCORES, SCORE_FORM)
    allocate: Scope = choose("scope", scope, SCOPES, SCOPE_FORM)
    if schedule is not None:
        choose("schedule", schedule, SCHEDULES, SCHEDULE_FORM)
    options: dict[str, Any] = dict(data=data, loss=loss, select=select, protect=protect, seed=seed)
    network = open_for(model, example, score, **options)
    options["data"] = network.batches if data is not None else None
    number = steps if steps is not None else traits_of(function).steps
    if number == 1:
        scores = function(network, None)
        everything = full_masks(None, network.weights)

    def survives(keep: int) -> bool:
        if number == 1:
            masks: Mapping[str, Tensor] = allocate(scores, everything, keep)
        else:
            masks = prune(
                model, example, density=keep / network.size, score=score, steps=steps, schedule=schedule,
                scope=scope, guard=False, **options,
            )  # fmt: skip
        if collapse == "empty_layer":
            return all(bool(mask.any()) for mask in masks.values())
        return connected(network, masks)

    return network.size / _fewest(survives, max(_least(network), 1), network.size, 0.0 if number == 1 else tolerance)


def _check_search(collapse: Any, tolerance: Any) -> None:
    named("collapse", collapse, ("disconnected", "empty_layer"))
    if not isinstance(tolerance, Real) or not 0 <= float(tolerance) < 1:
        raise SynflowError(f"tolerance must be a number from 0 to below 1, got {brief(tolerance)}")


def _fewest(survives: Callable[[int], bool], least: int, most: int, tolerance: float) -> int:
    """The fewest weights that survive, from `least` to `most`, by bisection, up to a relative tolerance."""
    dead, alive = least - 1, most
    while alive - dead > max(1, int(alive * tolerance)):
        middle = (alive + dead) // 2 if dead < 2 else round(math.sqrt(alive * dead))
        middle = min(max(middle, dead + 1), alive - 1)
        if survives(middle):
            alive = middle
        else:
            dead = middle
    return alive
