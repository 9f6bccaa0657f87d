"""Units: indices of dimensions that can only be removed together.

Every index along a dimension of a tensor has a unit. A tensor's *axes* hold, for each of its dimensions, either None
(a size that never changes) or the units of its indices as an integer tensor that broadcasts over the tensor's other
dimensions. Where that tensor varies along another dimension too, the dimension is *ragged*: each head of an attention,
or each group of a convolution, has units of its own, of which the same number must go everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Axes = list[Tensor | None]


def spread(ids: Tensor, dims: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Write out the named dimensions of a broadcasting tensor in full."""
    return ids.expand([shape[d] if d in dims else ids.shape[d] for d in range(ids.dim())])


def shrunk(ids: Tensor, own: int) -> Tensor:
    """The same written with size one along dimensions on which nothing depends, except its own."""
    for dim in range(ids.dim()):
        if dim != own and ids.shape[dim] > 1 and bool((ids == ids.narrow(dim, 0, 1)).all()):
            ids = ids.narrow(dim, 0, 1)
    return ids


def factor(before: Sequence[int], after: Sequence[int]) -> tuple[list[int], list[list[int]], list[list[int]]] | None:
    """Sizes of which both shapes are made, and which of them make each dimension; None if there are none.

    >>> factor((2, 12, 5), (2, 3, 20))
    ([2, 3, 4, 5], [[0], [1, 2], [3]], [[0], [1], [2, 3]])
    """
    sizes: list[int] = []
    made: tuple[list[list[int]], list[list[int]]] = ([[] for _ in before], [[] for _ in after])
    places, rest = [0, 0], [1, 1]
    shapes = (before, after)
    while True:
        for side in (0, 1):
            while rest[side] == 1 and places[side] < len(shapes[side]):
                rest[side] = shapes[side][places[side]]
                places[side] += 1
        if rest == [1, 1]:
            return sizes, *made
        small = min(rest)
        if small <= 1 or rest[0] % small or rest[1] % small:
            return None
        for side in (0, 1):
            made[side][places[side] - 1].append(len(sizes))
            rest[side] //= small
        sizes.append(small)


def gather(plane: Tensor, sizes: Sequence[int], made: Sequence[Sequence[int]]) -> Tensor:
    """A plane seen in factors, put together to the dimensions they make."""
    full = {p for places in made for p in places if any(plane.shape[q] > 1 for q in places)}
    plane = plane.expand([size if place in full else plane.shape[place] for place, size in enumerate(sizes)])
    shape = [int(torch.Size([plane.shape[p] for p in places]).numel()) for places in made]
    return plane.reshape(shape)


@dataclass
class Units:
    """Which units are one and the same, which may never go, and how counts are tied.

    `reasons`: why a unit may never go; `asides`: why a dead unit stays in the present attempt.
    `joints`: (whole, row, column) numbers: a unit that is seen as one index here and as a pair of indices elsewhere
    (a channel; head and channel in the head). The whole goes if and only if its row or its column goes.
    `children`: row and column of a whole; `columns`: those of dimensions that the model's own code reshapes; `cells`:
    dimensions that are cut into equal parts.
    `counts`: (matrix, rows): as many units must go in each line of the matrix; lines whose row unit goes don't count.
    """

    parent: list[int] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    asides: dict[int, str] = field(default_factory=dict)
    joints: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    counts: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    columns: list[Tensor] = field(default_factory=list)
    cells: list[Tensor] = field(default_factory=list)
    children: dict[int, tuple[int, int]] = field(default_factory=dict)
    _wholes: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)

    def fresh(self, shape: Sequence[int]) -> Tensor:
        """New units, one per element."""
        count = int(torch.Size(shape).numel())
        start = len(self.parent)
        self.parent.extend(range(start, start + count))
        return torch.arange(start, start + count).reshape(tuple(shape))

    def find(self, unit: int) -> int:
        """The unit that stands for all that are one with this one."""
        root = unit
        while self.parent[root] != root:
            root = self.parent[root]
        while self.parent[unit] != root:
            self.parent[unit], unit = root, self.parent[unit]
        return root

    def settle(self) -> Tensor:
        """Write one unit everywhere for all that have become one; returns it for each."""
        root = torch.tensor([self.find(unit) for unit in range(len(self.parent))], dtype=torch.long)
        self.joints = [(root[whole], root[row], root[column]) for whole, row, column in self.joints]
        self.counts = [(root[lines], None if rows is None else root[rows]) for lines, rows in self.counts]
        self.columns, self.cells = [root[ids] for ids in self.columns], [root[ids] for ids in self.cells]
        pairs = reversed(self.children.items())  # the first one counts
        self.children = {int(root[unit]): (int(root[row]), int(root[column])) for unit, (row, column) in pairs}
        return root

    def unify(self, first: Tensor, second: Tensor) -> None:
        """Make the units one, element by element, broadcasting."""
        if first.shape == second.shape and torch.equal(first, second):
            return
        one, other = (t.reshape(-1) for t in torch.broadcast_tensors(first, second))
        for pair in (one * len(self.parent) + other).unique().tolist():
            a, b = (self.find(unit) for unit in divmod(pair, len(self.parent)))
            if a != b:
                self.parent[max(a, b)] = min(a, b)
                reason = self.reasons.pop(max(a, b), None)
                if reason is not None:
                    self.reasons.setdefault(min(a, b), reason)

    def freeze(self, ids: Tensor | None, reason: str) -> None:
        """Keep these units, whatever happens; the first reason given is the one reported."""
        if ids is not None:
            for unit in ids.unique().tolist():
                self.reasons.setdefault(self.find(unit), reason)

    def level(self, ids: Tensor, dims: Sequence[int]) -> Tensor:
        """Undo raggedness along some dimensions: the units there become one."""
        for dim in dims:
            if ids.shape[dim] > 1:
                self.unify(ids, ids.narrow(dim, 0, 1))
                ids = ids.narrow(dim, 0, 1)
        return ids

    def split(self, whole: Tensor, row: int, columns: Sequence[int]) -> tuple[Tensor | None, Tensor | None]:
        """See one dimension as two: `whole` already has dimensions `row` and `columns` in place of it."""
        first = tuple(slice(0, 1) if dim in columns else slice(None) for dim in range(whole.dim()))
        lines = whole[first]
        if bool((whole == lines).all()):
            return lines, None
        if bool((whole == whole.narrow(row, 0, 1)).all()):
            return None, whole.narrow(row, 0, 1)
        known = [self.children.get(unit, (-1, -1)) for unit in whole.reshape(-1).tolist()]
        heads, inner = torch.tensor(known).reshape(*whole.shape, 2).unbind(-1)
        if bool((heads == heads[first]).all()) and bool((heads >= 0).all()):
            return heads[first], inner
        head = self.fresh(lines.shape)
        inner = self.fresh(whole.shape)
        self._join(whole, head.expand(whole.shape), inner)
        self.tie(inner, columns, head)
        self.tie(head, [row], None)
        return head, inner

    def merge(self, row: Tensor, column: Tensor) -> Tensor:
        """See two dimensions as one: the units of the pairs, both given in full."""
        wholes: list[int] = []
        missing: list[int] = []
        for place, pair in enumerate(zip(row.reshape(-1).tolist(), column.reshape(-1).tolist(), strict=True)):
            if pair not in self._wholes:
                self._wholes[pair] = int(self.fresh([1]))
                missing.append(place)
            wholes.append(self._wholes[pair])
        whole = torch.tensor(wholes).reshape(row.shape)
        if missing:
            places = torch.tensor(missing)
            self._join(whole.reshape(-1)[places], row.reshape(-1)[places], column.reshape(-1)[places])
        return whole

    def _join(self, whole: Tensor, row: Tensor, column: Tensor) -> None:
        whole, row, column = whole.reshape(-1), row.reshape(-1), column.reshape(-1)
        self.joints.append((whole, row, column))
        for unit, pair in zip(whole.tolist(), zip(row.tolist(), column.tolist(), strict=True), strict=True):
            self.children.setdefault(unit, pair)
            self._wholes.setdefault(pair, unit)

    def tie(self, ids: Tensor, columns: Sequence[int], rows: Tensor | None) -> None:
        """As many units must go in each line along `columns`, never all; lines whose row unit goes do not count."""
        last = tuple(range(-len(columns), 0))
        matrix = ids.movedim(tuple(columns), last).flatten(-len(columns)).flatten(0, -2)
        if len(matrix) > 1 or rows is None:
            self.counts.append((matrix, None if rows is None else rows.movedim(tuple(columns), last).reshape(-1)))
