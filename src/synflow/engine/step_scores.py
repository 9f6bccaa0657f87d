"""What the fast engine answers at a step: scores that are not multiplied out until asked for, and weights to remove."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..flow.measure import Measurement
from .scores import FactoredScores
from .select_lightest import Lightest


@dataclass(frozen=True)
class FastScores:
    """The scores of one step, made when they are asked for; `widened` gives tensors the shapes of the whole network."""

    flow: Measurement
    factored: FactoredScores
    widened: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    _flows: dict[str, float] = field(default_factory=dict)

    @property
    def layer_flows(self) -> Mapping[str, float]:
        """The flow of each layer: the sum of its scores, before they are balanced."""
        if not self._flows:
            for name, gradient in self.factored.gradients.items():
                self._flows[name] = 0.0 if gradient.flow is None else float(gradient.flow)
        return self._flows

    def whole(self) -> dict[str, Tensor]:
        """All scores, in the shapes of the weights."""
        return self.widened(self.factored.whole())


@dataclass(frozen=True)
class FastRemoval:
    """The lightest weights, as found among the scores of one step; or, in rare cases, the masks that stay."""

    number: int
    total: float
    scores: FastScores
    lightest: Lightest | None = None
    masks: dict[str, Tensor] | None = None
