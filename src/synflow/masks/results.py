"""The result of pruning: masks with their settings, and the record of each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class StepRecord:
    """The record of a step; `pruned_fraction` is the pruned flow over the flow: below one, a path provably survives."""

    index: int
    density: float
    kept: int
    flow_log2: float | None
    pruned_fraction: float | None
    substeps: int

    @property
    def held(self) -> bool | None:
        """Whether the condition of Theorem 3 held: the pruned flow was less than the flow."""
        return None if self.pruned_fraction is None else self.pruned_fraction < 1.0


@dataclass(frozen=True)
class Step(StepRecord):
    """A step with its scores and the masks after it."""

    masks: dict[str, Tensor]
    scores: dict[str, Tensor]

    @property
    def record(self) -> StepRecord:
        """The step without its tensors."""
        return StepRecord(self.index, self.density, self.kept, self.flow_log2, self.pruned_fraction, self.substeps)


class Masks(dict[str, Tensor]):
    """A dict of masks, with `about` (the settings of the run) and `steps` (one record per step)."""

    def __init__(
        self, masks: Mapping[str, Tensor], about: Mapping[str, Any] | None = None, steps: Iterable[StepRecord] = ()
    ) -> None:
        super().__init__(masks)
        self.about: dict[str, Any] = dict(about or {})
        self.steps: tuple[StepRecord, ...] = tuple(steps)
