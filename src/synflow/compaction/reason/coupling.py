"""The units of every tensor on a tape, as the rules find them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..record.tape import Tape
from .contractions import Contraction
from .units import Axes, Units

__all__ = ["Coupling", "beside", "levelled", "lifted"]


FIXED_SIZE = "it is combined with a tensor of fixed size"


class UnfollowedError(Exception):
    """A form of an operation in which units cannot be followed; the message names it."""


@dataclass
class Coupling:
    """The units of every tensor on a tape, and the sums over them.

    `sums`: (unit ids of the summed index as (batch, k), contraction) for each sum of products;
    `totals`: (tensor, dimension) for each plain sum; `weights`: tensors made of parameters alone; `unfollowed`: tensors
    behind an operation in which units cannot be followed, with the reason.
    """

    tape: Tape
    units: Units = field(default_factory=Units)
    axes: dict[int, Axes] = field(default_factory=dict)
    sums: list[tuple[Tensor, Contraction]] = field(default_factory=list)
    totals: list[tuple[int, int]] = field(default_factory=list)
    weights: set[int] = field(default_factory=set)
    flexible: frozenset[str] = frozenset()
    unfollowed: dict[int, str] = field(default_factory=dict)

    @functools.cached_property
    def roots(self) -> Tensor:
        """The unit that stands for each, once all rules have been applied."""
        return self.units.roots(torch.arange(len(self.units.parent)))

    def of(self, number: int) -> Axes:
        """The axes of a tensor; new units for a parameter or buffer, fixed sizes for an unknown tensor."""
        if number not in self.axes:
            shape = self.tape.shapes[number]
            if self.is_free(number):
                self.axes[number] = [self.vector(size, dim, len(shape)) for dim, size in enumerate(shape)]
            else:
                self.axes[number] = [None] * len(shape)
        return self.axes[number]

    def is_free(self, number: int) -> bool:
        """Is this a parameter or buffer that can be cut? Tables of whole numbers hold sizes and places, not values."""
        known = self.tape.leaves
        return number in known and number not in self.tape.written and number not in self.tape.constants

    def vector(self, size: int, dim: int, rank: int) -> Tensor | None:
        """New units along one dimension; a dimension of size one can't shrink."""
        return None if size <= 1 else self.units.fresh([size if d == dim else 1 for d in range(rank)])

    def vector_of(self, number: int, ids: Tensor | None) -> Tensor | None:
        """The units of a tensor with one dimension; if it has none yet, it takes those it meets, which saves work."""
        if number not in self.axes and ids is not None and self.is_free(number):
            self.axes[number] = [ids.reshape(-1)]
        return self.of(number)[0]

    def freeze(self, number: int, dims: Sequence[int], reason: str) -> None:
        axes = self.of(number)
        for dim in dims:
            self.units.freeze(axes[dim], reason)

    def freeze_all(self, numbers: Sequence[int], reason: str) -> None:
        for number in numbers:
            if number in self.axes or number in self.tape.leaves:
                self.freeze(number, range(len(self.tape.shapes[number])), reason)

    def one(self, first: Tensor | None, second: Tensor | None, reason: str) -> Tensor | None:
        """Two dimensions of the same size that stand side by side: their units become one."""
        if first is None or second is None:
            self.units.freeze(first if second is None else second, reason)
            return None
        self.units.unify(first, second)
        return first if first.numel() <= second.numel() else second


def lifted(ids: Tensor | None, new: int) -> Tensor | None:
    """Units seen with more dimensions in front."""
    return None if ids is None else ids.reshape([1] * new + list(ids.shape))


def levelled(c: Coupling, axes: Axes, dims: Sequence[int]) -> Axes:
    """No axis is ragged along these dimensions any more, except the dimensions' own."""
    return [None if ids is None else c.units.level(ids, [d for d in dims if d != own]) for own, ids in enumerate(axes)]


def beside(c: Coupling, numbers: Sequence[int], shape: Sequence[int]) -> Axes:
    """Tensors combined element by element, broadcasting."""
    rank = len(shape)
    result: Axes = [None] * rank
    seen = [False] * rank
    for number in numbers:
        source, own = c.of(number), c.tape.shapes[number]
        new = rank - len(own)
        for dim, ids in enumerate(source):
            place = dim + new
            if own[dim] == 1:
                continue
            ids = lifted(ids, new)
            if seen[place]:
                reason = next((c.unfollowed[n] for n in numbers if n in c.unfollowed), FIXED_SIZE)
                result[place] = c.one(result[place], ids, reason)
            else:
                result[place], seen[place] = ids, True
    return result
