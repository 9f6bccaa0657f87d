"""Which dimensions shrink together where elements only move: reshaping, cutting, putting together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..record.tape import Step
from .coupling import Coupling, UnfollowedError, beside, levelled, lifted
from .planes import redo
from .units import Axes, common_shape, shrunk, spread

__all__ = ["cat", "expand", "factor", "index", "pad", "parts", "permute", "reshape", "shift", "stack"]


def reshape(c: Coupling, step: Step) -> None:
    """One dimension seen as several, or several as one."""
    c.axes[step.outputs[0]] = _reshaped(c, step)


def _reshaped(c: Coupling, step: Step) -> Axes:
    before, after = c.tape.shapes[step.inputs[0]], c.tape.shapes[step.outputs[0]]
    axes = c.of(step.inputs[0])
    if all(ids is None for ids in axes):
        return [None] * len(after)
    plan = factor(before, after)
    if plan is None:
        c.freeze(step.inputs[0], range(len(before)), "it is reshaped across dimensions")
        return [None] * len(after)
    sizes, made_before, made_after = plan
    split: Axes = [None] * len(sizes)
    for dim, places in enumerate(made_before):
        ids = axes[dim]
        rest = list(places)
        whole = None if ids is None else _lift(ids, sizes, made_before)
        while whole is not None and rest:
            if len(rest) == 1:
                split[rest[0]] = shrunk(whole, rest[0])
                break
            row, whole = c.units.split(whole, rest[0], rest[1:])
            split[rest[0]] = row
            rest = rest[1:]
            if row is not None and whole is not None and step.module not in c.flexible:
                c.units.columns.append(whole)
    result: Axes = []
    for places in made_after:
        joined: Tensor | None = None
        for turn, place in enumerate(reversed(places)):
            ids = split[place]
            if ids is None:
                continue
            later = places[len(places) - turn :]
            ids = c.units.level(ids, later)  # lines that depend on what follows them can't be laid out in order
            if joined is None:
                joined = ids
            else:
                line, column = torch.broadcast_tensors(
                    spread(ids, [place, *later], sizes), spread(joined, later, sizes)
                )
                joined = c.units.merge(line, column)
        result.append(None if joined is None else _gather(spread(joined, places, sizes), sizes, made_after))
    return result


def permute(c: Coupling, step: Step) -> None:
    """Dimensions in another order."""
    source = c.of(step.inputs[0])
    sizes = range(2, len(source) + 2)  # all different, so that the shape of the result tells the order
    order = [size - 2 for size in redo(step, [torch.empty(tuple(sizes), device="meta")])[0].shape]
    c.axes[step.outputs[0]] = [None if (ids := source[d]) is None else ids.permute(order) for d in order]


def expand(c: Coupling, step: Step) -> None:
    """Dimensions of size one repeated: their new size has no units."""
    source = c.of(step.inputs[0])
    new = len(c.tape.shapes[step.outputs[0]]) - len(source)
    c.axes[step.outputs[0]] = [*[None] * new, *(lifted(ids, new) for ids in source)]


def shift(c: Coupling, step: Step) -> None:
    """Elements that change places along a dimension."""
    source = c.of(step.inputs[0])
    moved = _touched(step, len(source))
    c.freeze(step.inputs[0], moved, f"it is moved about by position ({step.name})")
    c.axes[step.outputs[0]] = levelled(c, source, moved)


def stack(c: Coupling, step: Step) -> None:
    """Tensors side by side along a new dimension."""
    dim = step.args["dim"] % len(c.tape.shapes[step.outputs[0]])
    inner = beside(c, step.inputs, c.tape.shapes[step.inputs[0]])
    outer: Axes = [None if ids is None else ids.unsqueeze(dim) for ids in inner]
    c.axes[step.outputs[0]] = [*outer[:dim], None, *outer[dim:]]


def parts(c: Coupling, step: Step) -> None:
    """Stretches of a dimension: cut at fixed places it can't shrink, cut in equal parts it can, evenly."""
    source, shape = c.of(step.inputs[0]), c.tape.shapes[step.inputs[0]]
    dim = step.args["dim"] % len(shape)
    places = torch.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    pieces = [piece.reshape(-1) for piece in redo(step, [places])]
    drop = step.name in ("select", "unbind")
    ids = source[dim]
    whole = len(pieces[0]) == shape[dim]
    if ids is not None and not whole and step.module not in c.flexible:
        listed = "with_sizes" in step.name  # a list of sizes, unlike a number of parts, does not follow by itself
        if listed and all((number, dim) in c.tape.sizes for number in step.outputs):
            pass  # but these are attributes, which can be changed
        elif drop or listed or step.name == "slice" or len({len(piece) for piece in pieces}) > 1:
            c.units.freeze(ids, "it is cut at a fixed place")
        else:
            c.units.cells(ids, dim, len(pieces))
    for number, piece in zip(step.outputs, pieces, strict=True):
        cut = [axis if axis is None or axis.shape[dim] == 1 else axis.index_select(dim, piece) for axis in source]
        if drop:
            cut = [None if axis is None else axis.select(dim, 0) for own, axis in enumerate(cut) if own != dim]
        elif len(piece) <= 1:
            c.units.freeze(cut[dim], "a part of size one can't shrink")
            cut = [None if own == dim or (axis is not None and not axis.numel()) else axis
                   for own, axis in enumerate(cut)]  # fmt: skip
        c.axes[number] = cut


def cat(c: Coupling, step: Step) -> None:
    """Dimensions put end to end."""
    shapes = c.tape.shapes
    numbers = [n for n in step.inputs if shapes[n] != (0,)]
    dim, rank = step.args["dim"] % len(shapes[numbers[0]]), len(shapes[numbers[0]])
    pieces: list[Tensor] = []
    for number in numbers:
        ids = c.of(number)[dim]
        if ids is None and shapes[number][dim]:
            ids = c.units.fresh([shapes[number][dim] if d == dim else 1 for d in range(rank)])
            c.units.freeze(ids, "it lies beside a tensor of fixed size")
        if ids is not None:
            pieces.append(ids)
    common = common_shape([(*p.shape[:dim], 1, *p.shape[dim + 1 :]) for p in pieces])
    joined = torch.cat([p.expand([*common[:dim], p.shape[dim], *common[dim + 1 :]]) for p in pieces], dim)
    result = beside(c, numbers[:1], shapes[numbers[0]])
    for number in numbers[1:]:
        for other in range(rank):
            if other != dim and shapes[number][other] > 1:
                reason = "it lies beside a tensor of fixed size"
                result[other] = c.one(result[other], c.of(number)[other], reason)
    result = levelled(c, result, [dim])
    result[dim] = joined
    c.axes[step.outputs[0]] = result


def pad(c: Coupling, step: Step) -> None:
    """Padding has a fixed size of its own; what is padded may shrink."""
    source = c.of(step.inputs[0])
    pads, rank = step.args["pad"], len(source)
    moved = _touched(step, rank)
    result = levelled(c, source, moved)
    for dim in moved:
        ids = result[dim]
        before, after = pads[2 * (rank - 1 - dim) : 2 * (rank - 1 - dim) + 2]
        if ids is None:
            continue
        if before < 0 or after < 0:
            c.units.freeze(ids, "it is cropped")
            result[dim] = None
            continue
        ends = [c.units.fresh([*ids.shape[:dim], n, *ids.shape[dim + 1 :]]) for n in (before, after)]
        for end in ends:
            c.units.freeze(end, "it is padding")
        result[dim] = torch.cat([ends[0], ids, ends[1]], dim)
    c.axes[step.outputs[0]] = result


def index(c: Coupling, step: Step) -> None:
    """Rows picked by one table of numbers, as relative position biases are."""
    source, indices = c.of(step.inputs[0]), step.args["indices"]
    given = [d for d, table in enumerate(indices) if table is not None]
    table = indices[given[0]] if len(given) == 1 else None
    numbers = None if table is None else c.tape.constants.get(table.number)
    if numbers is None or numbers.dtype == torch.bool:
        raise UnfollowedError("several tables or a mask")
    dim = given[0]
    c.freeze(step.inputs[0], [dim], "it is looked up by number")
    left = levelled(c, source, [dim])
    new = len(c.tape.shapes[step.outputs[0]]) - len(source)
    result: Axes = []
    for own, ids in enumerate(left):
        if own == dim:
            result += [None] * (new + 1)
        else:
            result.append(None if ids is None
                          else ids.reshape([*ids.shape[:dim], *[1] * (new + 1), *ids.shape[dim + 1 :]]))  # fmt: skip
    c.axes[step.outputs[0]] = result


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


def _lift(plane: Tensor, sizes: Sequence[int], made: Sequence[Sequence[int]]) -> Tensor:
    """A plane seen in the factors of its dimensions."""
    shape = [1] * len(sizes)
    for dim, places in enumerate(made):
        if plane.shape[dim] > 1:
            for place in places:
                shape[place] = sizes[place]
    return plane.reshape(shape)


def _gather(plane: Tensor, sizes: Sequence[int], made: Sequence[Sequence[int]]) -> Tensor:
    """A plane seen in factors, put together to the dimensions they make."""
    full = {p for places in made for p in places if any(plane.shape[q] > 1 for q in places)}
    plane = plane.expand([size if place in full else plane.shape[place] for place, size in enumerate(sizes)])
    shape = [int(torch.Size([plane.shape[p] for p in places]).numel()) for places in made]
    return plane.reshape(shape)


def _touched(step: Step, rank: int) -> list[int]:
    """The dimensions along which a step moves elements, for steps that keep the order of dimensions."""
    if step.name == "constant_pad_nd":
        pads = step.args["pad"]
        return [rank - 1 - i for i in range(len(pads) // 2) if any(pads[2 * i : 2 * i + 2])]
    dims = step.args["dims"] if step.name in ("roll", "flip") else [step.args["dim"]]
    return [d % rank for d in dims] or list(range(rank))
