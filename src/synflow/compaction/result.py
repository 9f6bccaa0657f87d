"""What a compaction did, for reading and for doing it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import SynflowError
from ..masks.checks import some
from .cut.attention import Indices
from .cut.surgery import cut


@dataclass(frozen=True)
class Stayed:
    """Units that look dead but were kept: how many, along which dimensions of which parameters, and why."""

    reason: str
    units: int
    where: tuple[str, ...]


@dataclass(frozen=True)
class Compaction:
    """What `compact` did.

    `kept` holds, for every parameter and buffer that shrank, the kept indices of each dimension that did; `shapes` are
    the dense shapes. Where groups of a convolution keep different inputs there is one list of indices per group.
    `attributes` are sizes that modules other than plain layers remember, by module path. `difference` is the largest
    deviation of outputs found in the check, relative to their size; `notes` say what could not be checked or removed.
    """

    kept: Mapping[str, Mapping[int, Indices]]
    shapes: Mapping[str, tuple[int, ...]]
    attributes: Mapping[str, Mapping[str, Any]]
    parameters: tuple[int, int]
    stayed: tuple[Stayed, ...] = ()
    notes: tuple[str, ...] = ()
    difference: float = 0.0
    modes: tuple[str, ...] = ("eval", "train")

    @property
    def removed(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Dense and compact size of each dimension, for every tensor that shrank."""
        small = {n: cut(torch.empty(shape, device="meta"), self.kept[n]).shape for n, shape in self.shapes.items()}
        return {name: tuple(zip(shape, small[name], strict=True)) for name, shape in self.shapes.items()}

    def __str__(self) -> str:
        dense, small = self.parameters
        lines = [f"{dense:,} parameters became {small:,} ({dense / max(small, 1):.1f}x fewer)"]
        for name, sizes in self.removed.items():
            if len(sizes) > 1:
                before, after = (" x ".join(str(pair[i]) for pair in sizes) for i in (0, 1))
                lines.append(f"  {name}: {before} -> {after}")
        for stay in self.stayed:
            plural = "s" * (stay.units > 1)
            lines.append(f"  kept {stay.units} dead unit{plural} ({some(stay.where, 3)}): {stay.reason}")
        lines += [f"  note: {note}" for note in self.notes]
        equal = f"outputs equal to {self.difference:.0e} in {' and '.join(self.modes)} mode"
        lines.append(equal if self.kept else "nothing was removed")
        return "\n".join(lines)


def compaction_of(small: nn.Module) -> Compaction:
    """The record that a compact network carries."""
    compaction = getattr(small, "compaction", None)
    if not isinstance(compaction, Compaction):
        raise SynflowError(f"this {type(small).__name__} does not come from synflow.compact or synflow.load_compact")
    return compaction
