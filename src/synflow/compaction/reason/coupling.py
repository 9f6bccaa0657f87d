"""The units of every tensor on a tape, as the rules find them, and the rules of sums of products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..record.tape import Step, Tape
from .planes import Contraction, contraction
from .units import Axes, Units


class UnfollowedError(Exception):
    """A form of an operation in which units cannot be followed; the message names it."""


@dataclass
class Coupling:
    """The units of every tensor on a tape, and the sums over them.

    `sums`: (unit ids of the summed index as (batch, k), contraction) for each sum of products; `weights`: tensors made
    of parameters alone; `unfollowed`: tensors behind an operation in which units cannot be followed, with the reason.
    """

    tape: Tape
    units: Units = field(default_factory=Units)
    axes: dict[int, Axes] = field(default_factory=dict)
    sums: list[tuple[Tensor, Contraction]] = field(default_factory=list)
    weights: set[int] = field(default_factory=set)
    flexible: frozenset[str] = frozenset()
    unfollowed: dict[int, str] = field(default_factory=dict)

    def settle(self) -> None:
        """Once all rules have been applied, write one unit everywhere for all that have become one."""
        root = self.units.settle()
        self.axes = {n: [None if ids is None else root[ids] for ids in axes] for n, axes in self.axes.items()}
        self.sums = [(root[ids], p) for ids, p in self.sums]

    def of(self, number: int) -> Axes:
        """The axes of a tensor; new units for a parameter or buffer, fixed sizes for an unknown tensor."""
        if number not in self.axes:
            self.axes[number] = self.new(number) if self.is_free(number) else [None] * len(self.tape.shapes[number])
        return self.axes[number]

    def new(self, number: int) -> Axes:
        """New units for each dimension of a tensor; a dimension of size one can't shrink."""
        sizes = self.tape.shapes[number]
        shapes = [[size if d == dim else 1 for d in range(len(sizes))] for dim, size in enumerate(sizes)]
        return [self.units.fresh(shape) if size > 1 else None for size, shape in zip(sizes, shapes, strict=True)]

    def adopt(self, number: int, dim: int, ids: Tensor | None) -> Tensor | None:
        """The units of a dimension; a parameter that has none yet takes those it meets, which saves work."""
        new = number not in self.axes and self.is_free(number)
        axes = self.of(number)
        if new and ids is not None:
            axes[dim] = ids.reshape([-1 if d == dim else 1 for d in range(len(axes))])
        return axes[dim]

    def is_free(self, number: int) -> bool:
        """Is this a parameter or buffer that can be cut? Tables of whole numbers hold sizes and places, not values."""
        tape = self.tape
        return number in tape.leaves and number not in tape.written and number not in tape.whole

    def fixed(self, size: int, dim: int, rank: int, reason: str) -> Tensor:
        """New units along one dimension that always stay."""
        ids = self.units.fresh([size if d == dim else 1 for d in range(rank)])
        self.units.freeze(ids, reason)
        return ids

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


def held(c: Coupling, number: int, dims: Sequence[int], reason: str) -> Axes:
    """The axes of a tensor of which an operation mixes or counts these dimensions, so that they keep their size."""
    source = c.of(number)
    dims = [dim % len(source) for dim in dims]
    c.freeze(number, dims, reason)
    return [None if dim in dims else ids for dim, ids in enumerate(levelled(c, source, dims))]


def beside(c: Coupling, numbers: Sequence[int], shape: Sequence[int], skip: int | None = None) -> Axes:
    """Tensors combined element by element, broadcasting; one dimension may be left out."""
    rank = len(shape)
    result: Axes = [None] * rank
    seen = [False] * rank
    fixed = next((c.unfollowed[n] for n in numbers if n in c.unfollowed), "it is combined with a tensor of fixed size")
    for number in numbers:
        new = rank - len(c.tape.shapes[number])
        for place, ids in enumerate(c.of(number), new):
            if place == skip or c.tape.shapes[number][place - new] == 1:
                continue
            ids = lifted(ids, new)
            result[place] = c.one(result[place], ids, fixed) if seen[place] else ids
            seen[place] = True
    return result


def _summed(c: Coupling, p: Contraction, first: Tensor | None, second: Tensor | None, fixed: str) -> Tensor | None:
    """The index that a product sums over, of which both factors have units."""
    k = c.one(first, second, c.unfollowed.get(p.x, fixed))
    if k is None and p.x in c.unfollowed:
        k = second  # so that what is dead there is named, with the reason
    if k is not None:
        c.sums.append((k, p))
    return k


def matrix_product(c: Coupling, step: Step) -> None:
    """(m, k) times (k, n), or a batch of them; queries may be learnt, and still keep their size in an attention."""
    p = contraction(step, c.tape)
    rank, size = len(p.shapes[0]), p.shapes[0][-1]
    x, y = (levelled(c, c.of(number), [rank - 2, rank - 1]) for number in (p.x, p.y))
    if size > 1:
        taken, given = (None if ids is None else ids.reshape(-1, size) for ids in (x[-1], y[-2]))
        k = _summed(c, p, taken, given, "it is multiplied with a matrix of fixed size")
        if (step.module in c.flexible and rank == 3) or (p.x not in c.weights and p.y not in c.weights):
            c.units.freeze(k, "products of activations are scaled by its size")
    out: Axes = [None] * rank
    if rank == 3 and p.shapes[0][0] > 1:
        out[0] = c.one(x[0], y[0], "it is multiplied with a batch of fixed size")
    out[-2:] = [x[-2], y[-1]]
    if p.bias is not None:
        new = rank - len(c.tape.shapes[p.bias])
        for dim, ids in enumerate(c.of(p.bias)):
            if c.tape.shapes[p.bias][dim] > 1:
                out[dim + new] = c.one(out[dim + new], lifted(ids, new), "a bias of fixed size is added")
    c.axes[p.out] = out


def convolution(c: Coupling, step: Step) -> None:
    """Plain, grouped, transposed."""
    p = contraction(step, c.tape)
    x = held(c, p.x, range(2, len(p.shapes[0])), "it is convolved over")
    channels = None if x[1] is None else c.units.level(x[1], [0]).reshape(-1)
    if p.groups > 1:
        made = _grouped(c, p, channels)
    else:
        inner, outer = (0, 1) if p.transposed else (1, 0)
        taken = c.adopt(p.y, inner, channels)
        if p.shapes[0][1] > 1:
            first, second = (None if ids is None else ids.reshape(1, -1) for ids in (channels, taken))
            _summed(c, p, first, second, "the convolved tensor has a fixed size")
        ids = c.of(p.y)[outer]
        made = None if ids is None else ids.reshape(-1)
    c.freeze(p.y, range(2, len(p.shapes[1])), "it is convolved with")
    if p.bias is not None and p.shapes[2][1] > 1:
        made = c.one(made, c.adopt(p.bias, 0, made), "a bias of fixed size is added")
    c.axes[p.out] = [x[0], None if made is None else made.reshape(1, -1, *[1] * (len(x) - 2)), *[None] * (len(x) - 2)]


def _grouped(c: Coupling, p: Contraction, channels: Tensor | None) -> Tensor | None:
    """Each group has inputs and outputs of its own; a whole group may go, or as many units in each."""
    if p.transposed:
        raise UnfollowedError("groups that is transposed")
    groups, units, tied = p.groups, c.units, "channels are tied across groups of a convolution"
    inside, outside = p.shapes[0][1] // groups, p.shapes[2][1] // groups
    if channels is None:
        channels = c.fixed(groups * inside, 0, 1, "the convolved tensor has a fixed size")
    group: Tensor | None = channels.reshape(groups, inside)
    inner: Tensor | None = None
    if inside > 1:
        group, inner = units.split(channels.reshape(groups, inside), 0, [1])
    if group is None:  # the same channel of every group goes at once
        group = c.fixed(groups, 0, 2, tied)
    made, taken = _weight_of_groups(c, p, group)
    if outside == 1:
        units.unify(group if made is None else made, group)
        made = group
    elif made is not None:
        row, _ = units.split(made, 0, [1])
        if row is None:
            units.freeze(made, tied)
        else:
            units.unify(row, group)
    if inside > 1:
        _summed(c, p, None if inner is None else inner.expand(groups, inside), taken, tied)
    return None if made is None else made.reshape(-1)


def _weight_of_groups(c: Coupling, p: Contraction, group: Tensor) -> Axes:
    """The units of a weight's rows and columns, per group: columns are ragged, each group has its own."""
    rows, columns = p.shapes[1][:2]
    if p.y not in c.axes and c.is_free(p.y):
        outside, ones = rows // p.groups, [1] * (len(p.shapes[1]) - 2)
        made, taken = group, c.units.fresh([p.groups, columns])
        if outside > 1:
            column = c.units.fresh([p.groups, outside])
            made = c.units.merge(group.expand(p.groups, outside), column)
            c.units.tie(column, [1], group)
        lines = taken.unsqueeze(1).expand(-1, outside, -1)
        own = lines.reshape(rows, columns, *ones) if columns > 1 else None
        c.axes[p.y] = [made.reshape(rows, 1, *ones), own, *[None] * len(ones)]
    row, line = c.of(p.y)[:2]
    if line is not None:
        line = c.units.level(line.flatten(1).expand(rows, -1).reshape(p.groups, -1, columns), [1])[:, 0]
    return [None if row is None else row.reshape(p.groups, -1), line]
