"""The units of every tensor on a tape, as the rules find them, and the rules of sums of products."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..record.tape import Tape
from .planes import Contraction
from .units import Axes, Units

__all__ = ["Coupling", "UnfollowedError", "beside", "convolution", "levelled", "lifted", "matrix_product"]


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


def matrix_product(c: Coupling, p: Contraction, attention: bool = False) -> None:
    """(m, k) times (k, n), or a batch of them; queries may be learnt, and still keep their size in an attention."""
    rank = len(p.shapes[0])
    x, y = c.of(p.x), c.of(p.y)
    k_x, k_y = x[-1], y[-2]
    if k_x is not None:
        k_x = c.units.level(k_x, [rank - 2]).transpose(-1, -2)
    if k_y is not None:
        k_y = c.units.level(k_y, [rank - 1])
    if p.shapes[0][-1] > 1:
        k = c.one(k_x, k_y, c.unfollowed.get(p.x, "it is multiplied with a matrix of fixed size"))
        if k is None and p.x in c.unfollowed:
            k = k_y  # so that what is dead there is named, with the reason
        if k is not None:
            if (attention and rank == 3) or (p.x not in c.weights and p.y not in c.weights):
                c.units.freeze(k, "products of activations are scaled by its size")
            wide = k.reshape(-1, k.shape[-2]) if rank == 3 else k.reshape(1, -1)
            c.sums.append((wide, p))
    out: Axes = [None] * rank
    if rank == 3 and p.shapes[0][0] > 1:
        out[0] = c.one(x[0], y[0], "it is multiplied with a batch of fixed size")
    out[-2] = None if x[-2] is None else c.units.level(x[-2], [rank - 1])
    out[-1] = None if y[-1] is None else c.units.level(y[-1], [rank - 2])
    if p.bias is not None:
        bias_axes, bias_shape = c.of(p.bias), c.tape.shapes[p.bias]
        new = rank - len(bias_shape)
        for dim, ids in enumerate(bias_axes):
            if bias_shape[dim] > 1:
                out[dim + new] = c.one(out[dim + new], lifted(ids, new), "a bias of fixed size is added")
    c.axes[p.out] = out


def convolution(c: Coupling, p: Contraction) -> None:
    """Plain, grouped, transposed."""
    groups, rank = p.groups, len(p.shapes[0])
    spatial = [1] * (rank - 2)
    fixed = c.unfollowed.get(p.x, "the convolved tensor has a fixed size")
    x = levelled(c, c.of(p.x), [0, *range(2, rank)])
    c.freeze(p.x, range(2, rank), "it is convolved over")
    channels = None if x[1] is None else x[1].reshape(-1)
    if groups == 1:
        if p.y not in c.axes and c.is_free(p.y):
            pair = [c.vector(p.shapes[1][dim], dim, rank) for dim in (0, 1)]
            if channels is not None:
                inner = 0 if p.transposed else 1
                pair[inner] = channels.reshape([-1 if dim == inner else 1 for dim in range(rank)])
            c.axes[p.y] = [*pair, *[None] * (rank - 2)]
        weight = c.of(p.y)
        c.freeze(p.y, range(2, rank), "it is convolved with")
        taken, outer = (weight[0], weight[1]) if p.transposed else (weight[1], weight[0])
        if p.shapes[0][1] > 1:
            taken = None if taken is None else taken.reshape(-1)
            k = c.one(channels, taken, fixed)
            if k is None and p.x in c.unfollowed:
                k = taken
            if k is not None:
                c.sums.append((k.reshape(1, -1), p))
        made = None if outer is None else outer.reshape(-1)
    else:
        made = _grouped(c, p, channels)
    if p.bias is not None and p.shapes[2][1] > 1:
        made = c.one(made, c.vector_of(p.bias, made), "a bias of fixed size is added")
    c.axes[p.out] = [x[0], None if made is None else made.reshape(1, -1, *spatial), *[None] * (rank - 2)]


def _grouped(c: Coupling, p: Contraction, channels: Tensor | None) -> Tensor | None:
    """Each group has inputs and outputs of its own; a whole group may go, or as many units in each."""
    groups, units = p.groups, c.units
    inside, outside = p.shapes[0][1] // groups, p.shapes[2][1] // groups
    if channels is None:
        channels = units.fresh([groups * inside])
        units.freeze(channels, "the convolved tensor has a fixed size")
    group: Tensor | None
    inner: Tensor | None
    group, inner = channels.reshape(groups, inside), None
    if inside > 1:
        group, inner = units.split(group, 0, [1])
    if group is None:  # the same channel of every group goes at once
        group = units.fresh([groups, 1])
        units.freeze(group, "channels are tied across groups of a convolution")
    if inner is not None:
        inner = inner.expand(groups, inside)
        c.sums.append((inner, p))
    known = p.y in c.axes
    if outside == 1:
        made = group.expand(groups, 1).reshape(-1)
    elif known and (stored := c.axes[p.y][1 if p.transposed else 0]) is not None and not p.transposed:
        made = stored.reshape(-1)
        row, _ = units.split(made.reshape(groups, outside), 0, [1])
        if row is not None:
            units.unify(row, group)
        else:
            units.freeze(made, "channels are tied across groups of a convolution")
    else:
        column = units.fresh([groups, outside])
        made = units.merge(group.expand(groups, outside), column).reshape(-1)
        units.tie(column, [1], group)
    ones = [1] * (len(p.shapes[1]) - 2)
    if p.transposed:  # (inputs, outputs of a group, kernel)
        ragged = made.reshape(groups, 1, outside).expand(-1, inside, -1).reshape(-1, outside, *ones)
        weight: Axes = [channels.reshape(-1, 1, *ones), ragged if outside > 1 else None]
    else:
        lines = None if inner is None else inner.unsqueeze(1).expand(-1, outside, -1).reshape(-1, inside, *ones)
        weight = [made.reshape(-1, 1, *ones), lines]
    weight += [None] * len(ones)
    if not known:
        c.axes[p.y] = weight
    else:
        for old, new in zip(c.axes[p.y], weight, strict=True):
            if old is not None or new is not None:
                c.one(old, new, "the weight is also used elsewhere")
    return made
