"""Algorithm 1 of the paper in plain code: the plain engine, and the loop around it.

    masks = 1
    for k in 1 .. n:
        R = sum of the outputs for an input of ones, with |weight * mask| in place of each weight
        S = |weight * mask| * dR/d|weight * mask|
        masks keep the round(N * density ** (k / n)) weights with the largest S

Chosen with `prune(..., engine="plain")`. Slower than the fast engine, which is checked against it everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..flow.measure import Measurement, absolute, measure
from ..flow.passes import DEFAULT, PassOptions
from ..flow.paths import connected, reach
from ..network.private_copy import Network
from ..support.chunked import count, lightest, total_score
from ..support.ranking import keep_best
from .engine import EngineSettings, balanced_scores
from .schedules import exponential
from .scopes import difference


@dataclass(frozen=True)
class PlainScores:
    """The scores of one step, all in memory."""

    flow: Measurement
    scores: dict[str, Tensor]
    layer_flows: dict[str, float]

    def whole(self) -> dict[str, Tensor]:
        return self.scores


@dataclass(frozen=True)
class PlainRemoval:
    """A removal, by the masks that it leaves."""

    number: int
    total: float
    masks: dict[str, Tensor]
    gone: dict[str, Tensor]


class PlainEngine:
    """Dense masks, dense scores, one selection over all of them; `Engine` says what each method does."""

    name = "plain"

    def __init__(self, network: Network, masks: Mapping[str, Tensor], settings: EngineSettings) -> None:
        self.network, self.settings = network, settings
        self.fallbacks: dict[str, str] = {}
        self.measurements = 0
        self._masks = dict(masks)

    @property
    def count(self) -> int:
        return count(self._masks)

    def measure(self, options: PassOptions = DEFAULT, *, gradients: bool = True) -> PlainScores:
        """S = |w| dR/d|w|; balanced, each layer's scores are scaled to sum to R."""
        self.measurements += 1
        power = self.settings.power
        magnitudes = absolute(self.network, self._masks, power)
        flow = measure(self.network, magnitudes=magnitudes, power=power, options=options, gradients=gradients)
        flows = {name: float(score.sum(dtype=torch.float64)) for name, score in flow.scores.items()}
        scores = flow.scores
        if self.settings.balanced:
            scores = balanced_scores(flow, magnitudes, self.settings.cuts, self.settings.spread)
        return PlainScores(flow, scores, flows)

    def lightest(self, scores: PlainScores, number: int, budget: float = math.inf) -> PlainRemoval:
        """The weights with the least scores; among equals the later ones."""
        if budget < math.inf:
            number = min(number, lightest(scores.scores, self._masks, budget))
        kept = keep_best(scores.scores, self._masks, self.count - number)
        gone = difference(self._masks, kept)
        return PlainRemoval(number, total_score(scores.scores, gone), kept, gone)

    def weigh(self, removal: PlainRemoval, scores: PlainScores) -> float:
        return total_score(scores.scores, removal.gone)

    def leaves_a_path(self, removal: PlainRemoval) -> bool:
        return connected(self.network, self._nonzero(removal.masks))

    def remove(self, removal: PlainRemoval) -> Callable[[], None]:
        """Set the masks that a removal leaves; returns a function that undoes it."""
        before = self._masks
        self.keep_only(removal.masks)
        return lambda: self.keep_only(before)

    def removal(self, masks: Mapping[str, Tensor], scores: PlainScores) -> PlainRemoval:
        gone = difference(self._masks, masks)
        return PlainRemoval(count(gone), total_score(scores.scores, gone), dict(masks), gone)

    def live_layers(self) -> frozenset[str]:
        return reach(self.network, self._nonzero(self._masks)).live_layers

    def _nonzero(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights that masks keep, without those that are zero: nothing flows through them."""
        return {name: magnitude != 0 for name, magnitude in absolute(self.network, masks).items()}

    def keep_only(self, masks: Mapping[str, Tensor]) -> None:
        self._masks = dict(masks)

    def masks(self) -> dict[str, Tensor]:
        return {name: mask.clone() for name, mask in self._masks.items()}


def algorithm_1(network: Network, density: float, steps: int = 100) -> Iterator[dict[str, Tensor]]:
    """Algorithm 1 to the letter, without a guard: the masks after each step."""
    whole = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    engine = PlainEngine(network, whole, EngineSettings(steps=steps))
    for step in range(1, steps + 1):
        keep = round(network.size * exponential(step, steps, density))
        engine.remove(engine.lightest(engine.measure(), engine.count - keep))
        yield engine.masks()
