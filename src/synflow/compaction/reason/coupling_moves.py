"""Which dimensions shrink together where elements only move: reshaping, cutting, putting together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..record.tape import Step
from .coupling import Coupling, UnfollowedError, beside, held, levelled
from .planes import compressed, looked_up, move
from .units import Axes, shrunk, spread

__all__ = ["cat", "expand", "factor", "look_up", "pad", "parts", "permute", "reshape", "stack"]


def reshape(c: Coupling, step: Step) -> None:
    """One dimension seen as several, or several as one."""
    before, after = c.tape.shapes[step.inputs[0]], c.tape.shapes[step.outputs[0]]
    result: Axes = [None] * len(after)
    if any(ids is not None for ids in c.of(step.inputs[0])):
        plan = factor(before, after)
        if plan is None:
            c.freeze(step.inputs[0], range(len(before)), "it is reshaped across dimensions")
        else:
            sizes, made_before, made_after = plan
            split = _split(c, step, sizes, made_before)
            result = [_merged(c, split, sizes, places, made_after) for places in made_after]
    c.axes[step.outputs[0]] = result


def _split(c: Coupling, step: Step, sizes: Sequence[int], made: Sequence[Sequence[int]]) -> Axes:
    """The units of each factor of the dimensions of a tensor."""
    split: Axes = [None] * len(sizes)
    for ids, places in zip(c.of(step.inputs[0]), made, strict=True):
        rest = list(places)
        whole = None if ids is None else compressed(ids.expand(c.tape.shapes[step.inputs[0]]).reshape(list(sizes)))
        while whole is not None and rest:
            if len(rest) == 1:
                split[rest[0]] = shrunk(whole, rest[0])
                break
            row, whole = c.units.split(whole, rest[0], rest[1:])
            split[rest[0]] = row
            rest = rest[1:]
            if row is not None and whole is not None and step.module not in c.flexible:
                c.units.columns.append(whole)
    return split


def _merged(
    c: Coupling, split: Axes, sizes: Sequence[int], places: Sequence[int], made: Sequence[Sequence[int]]
) -> Tensor | None:
    """The units of one dimension that is made of several factors."""
    joined: Tensor | None = None
    for turn, place in enumerate(reversed(places)):
        ids = split[place]
        if ids is None:
            continue
        later = places[len(places) - turn :]
        ids = c.units.level(ids, later)  # lines that depend on what follows them can't be laid out in order
        if joined is not None:
            line, column = spread(ids, [place, *later], sizes), spread(joined, later, sizes)
            ids = c.units.merge(*torch.broadcast_tensors(line, column))
        joined = ids
    return None if joined is None else _gather(spread(joined, places, sizes), sizes, made)


def _viewed(c: Coupling, step: Step, order: Sequence[int | None]) -> None:
    """The step itself, done to units: `order` is the dimension from which each of the result's comes."""
    moved = [None if ids is None else move(step, c.tape, [ids]) for ids in c.of(step.inputs[0])]
    for place, number in enumerate(step.outputs):
        axes: Axes = []
        for dim, origin in enumerate(order):
            pieces = None if origin is None else moved[origin]
            ids = None if pieces is None else pieces[place]
            if ids is not None and (ids.shape[dim] <= 1 or not ids.numel()):
                c.units.freeze(ids, "a part of size one can't shrink")
                ids = None
            axes.append(ids)
        c.axes[number] = axes


def permute(c: Coupling, step: Step) -> None:
    """Dimensions in another order."""
    sizes = range(2, len(c.tape.shapes[step.inputs[0]]) + 2)  # all different: the shape of the result tells the order
    _viewed(c, step, [size - 2 for size in step.redo([torch.empty(tuple(sizes), device="meta")])[0].shape])


def expand(c: Coupling, step: Step) -> None:
    """Dimensions of size one repeated: their new size has no units."""
    rank, new = (len(c.tape.shapes[number]) for number in (step.inputs[0], step.outputs[0]))
    _viewed(c, step, [*[None] * (new - rank), *range(rank)])


def parts(c: Coupling, step: Step) -> None:
    """Stretches of a dimension: cut at fixed places it can't shrink, cut in equal parts it can, evenly."""
    shape = c.tape.shapes[step.inputs[0]]
    dim, drop = step.args["dim"] % len(shape), step.name in ("select", "unbind")
    places = torch.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    sizes = [piece.numel() for piece in step.redo([places])]
    ids = c.of(step.inputs[0])[dim]
    if ids is not None and sizes[0] != shape[dim] and step.module not in c.flexible:
        listed = "with_sizes" in step.name  # a list of sizes, unlike a number of parts, does not follow by itself
        if listed and all((number, dim) in c.tape.sizes for number in step.outputs):
            pass  # but these are attributes, which can be changed
        elif drop or listed or step.name == "slice" or len(set(sizes)) > 1:
            c.units.freeze(ids, "it is cut at a fixed place")
        else:
            c.units.cells.append(ids)
            c.units.counts.append((ids.movedim(dim, -1).reshape(-1, sizes[0]), None))
    _viewed(c, step, [d for d in range(len(shape)) if d != dim or not drop])


def cat(c: Coupling, step: Step) -> None:
    """Dimensions put end to end."""
    shapes, fixed = c.tape.shapes, "it lies beside a tensor of fixed size"
    numbers = [n for n in step.inputs if shapes[n] != (0,)]
    rank = len(shapes[numbers[0]])
    dim = step.args["dim"] % rank
    result = levelled(c, beside(c, numbers, shapes[numbers[0]], skip=dim), [dim])
    pieces = [ids if (ids := c.of(n)[dim]) is not None else c.fixed(shapes[n][dim], dim, rank, fixed) for n in numbers]
    result[dim] = move(step, c.tape, pieces)[0]
    c.axes[step.outputs[0]] = result


def stack(c: Coupling, step: Step) -> None:
    """Tensors side by side along a new dimension."""
    dim = step.args["dim"] % len(c.tape.shapes[step.outputs[0]])
    inner = beside(c, step.inputs, c.tape.shapes[step.inputs[0]])
    outer: Axes = [None if ids is None else ids.unsqueeze(dim) for ids in inner]
    c.axes[step.outputs[0]] = [*outer[:dim], None, *outer[dim:]]


def pad(c: Coupling, step: Step) -> None:
    """Padding has a fixed size of its own; what is padded may shrink."""
    pads, rank = step.args["pad"], len(c.tape.shapes[step.inputs[0]])
    ends = {rank - 1 - place: pads[2 * place : 2 * place + 2] for place in range(len(pads) // 2)}
    result = levelled(c, c.of(step.inputs[0]), [dim for dim, sizes in ends.items() if any(sizes)])
    for dim, sizes in ends.items():
        ids = result[dim]
        if min(sizes) < 0:
            c.units.freeze(ids, "it is cropped")
            result[dim] = None
        elif ids is not None:
            padding = int(c.fixed(1, 0, 1, "it is padding"))
            result[dim] = torch.constant_pad_nd(ids, [*[0, 0] * (rank - 1 - dim), *sizes], padding)
    c.axes[step.outputs[0]] = result


def look_up(c: Coupling, step: Step) -> None:
    """Lines picked by numbers: embeddings, relative position biases."""
    where = looked_up(step, c.tape)
    if where is None:
        raise UnfollowedError("several tables or a mask")
    dim, new = where
    left = held(c, step.inputs[0], [dim], "it is looked up by number")
    lines: Axes = [None if ids is None else ids.squeeze(dim)[(slice(None),) * dim + (None,) * new] for ids in left]
    c.axes[step.outputs[0]] = [*lines[:dim], *[None] * new, *lines[dim + 1 :]]


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


def _gather(plane: Tensor, sizes: Sequence[int], made: Sequence[Sequence[int]]) -> Tensor:
    """A plane seen in factors, put together to the dimensions they make."""
    full = {p for places in made for p in places if any(plane.shape[q] > 1 for q in places)}
    plane = plane.expand([size if place in full else plane.shape[place] for place, size in enumerate(sizes)])
    shape = [int(torch.Size([plane.shape[p] for p in places]).numel()) for places in made]
    return plane.reshape(shape)
