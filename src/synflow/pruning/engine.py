"""The interface of the engines: the methods that the pruning loop calls.

The plain engine (plain_engine.py) implements them as the paper describes; the fast one (synflow.engine) takes less time
and less memory. Both choose the same weights: in float64 their masks are equal.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import named
from ..flow.measure import Measurement
from ..flow.passes import DEFAULT, PassOptions
from ..network.private_copy import Network


@dataclass(frozen=True)
class EngineSettings:
    """What an engine has to know of a run.

    `power` is the power of the weights in the flow. With `balanced`, the scores of each layer are scaled to sum to the
    flow R. `cuts` are the layers whose scores do so unscaled. With `spread`, scores in the other layers are |w| times
    the root of dR/d|w|. `steps` is the number of steps of the run, None if it is not known.
    """

    power: int = 1
    balanced: bool = False
    cuts: frozenset[str] = frozenset()
    spread: bool = False
    steps: int | None = None


class StepScores(Protocol):
    """The scores of one step; `layer_flows` is the flow of each layer, in the units of `flow.value`."""

    flow: Measurement

    @property
    def layer_flows(self) -> Mapping[str, float]: ...

    def whole(self) -> dict[str, Tensor]:
        """All scores, in the shapes of the weights."""


class Removal(Protocol):
    """The lightest weights: how many, and what their scores sum to."""

    @property
    def number(self) -> int: ...

    @property
    def total(self) -> float: ...


class Engine(Protocol):
    """Measure the flow, find the lightest weights, remove them.

    `count` weights are left, the flow was measured `measurements` times, `fallbacks` are the parts of the engine that
    were switched off, each with the reason.
    """

    name: str
    count: int
    fallbacks: Mapping[str, str]
    measurements: int

    def measure(self, options: PassOptions = DEFAULT, *, gradients: bool = True) -> StepScores:
        """The flow of the remaining weights, and their scores."""

    def lightest(self, scores: StepScores, number: int, budget: float = math.inf) -> Removal:
        """The `number` lightest weights; fewer, where their scores would sum to the budget or more."""

    def weigh(self, removal: Removal, scores: StepScores) -> float:
        """The sum of other scores over a removal."""

    def leaves_a_path(self, removal: Removal) -> bool:
        """Whether an input still reaches an output after a removal."""

    def remove(self, removal: Removal) -> Callable[[], None]:
        """Remove weights; returns a function that puts them back."""

    def removal(self, masks: Mapping[str, Tensor], scores: StepScores) -> Removal:
        """The removal that leaves the given masks."""

    def live_layers(self) -> frozenset[str]:
        """The layers that have a weight on a path from an input to an output."""

    def keep_only(self, masks: Mapping[str, Tensor]) -> None:
        """Go on with other masks, which keep nothing that was pruned."""

    def masks(self) -> dict[str, Tensor]:
        """The masks, in tensors of their own."""


MakeEngine = Callable[[Network, Mapping[str, Tensor], EngineSettings], Engine]

# The engines by name: a module and the class in it. The fast engine is in a higher room, so it is named here and
# imported when a run asks for it.
ENGINES = {"fast": ("synflow.engine", "FastEngine"), "plain": ("synflow.pruning.plain_engine", "PlainEngine")}


def engine_named(name: str) -> MakeEngine:
    """An engine by its name."""
    named("engine", name, ENGINES)
    module, kind = ENGINES[name]
    found: MakeEngine = getattr(importlib.import_module(module), kind)
    return found


# The largest factor of a layer's scores, so that no scaled score overflows float32.
LARGEST_FACTOR = 2.0**100


def balancing(sums: Mapping[str, float], flow: Measurement, cuts: frozenset[str]) -> dict[str, float]:
    """The factor under which the scores of each layer sum to R.

    None for cuts, whose scores do so to the last bit; but terms that start at a bias do not pass the layers before it,
    so with shifts cuts get a factor too. A chain has only cuts: its scores stay those of the paper in any case.
    """
    exact = cuts if len(cuts) == len(sums) or not flow.had_shifts else frozenset()
    return {name: min(flow.value / own, LARGEST_FACTOR) for name, own in sums.items() if name not in exact and own > 0}


def balanced_scores(
    flow: Measurement, magnitudes: Mapping[str, Tensor], cuts: frozenset[str], spread: bool
) -> dict[str, Tensor]:
    """The scores of a measurement, balanced."""
    scores = dict(flow.scores)
    if spread:
        # |w| * sqrt(dR/d|w|), from S = |w| dR/d|w|
        scores |= {n: s.sqrt() * magnitudes[n].sqrt() for n, s in scores.items() if n not in cuts}
    sums = {name: float(score.sum(dtype=torch.float64)) for name, score in scores.items()}
    scales = balancing(sums, flow, cuts)
    return {name: score * scales[name] if name in scales else score for name, score in scores.items()}
