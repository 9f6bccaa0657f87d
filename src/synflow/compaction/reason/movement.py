"""Operations that only move elements, applied to planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..record.aten_names import KEEPING, LOOKUPS, PARTS, PERMUTATIONS, VIEWS
from ..record.tape import Ref, Step, Tape
from .planes import lit, some
from .units import common_shape

__all__ = ["compressed", "factor", "gather", "lift", "move", "permutation", "reshape", "stretches", "touched"]

Plan = tuple[list[int], list[list[int]], list[list[int]]]


def factor(before: Sequence[int], after: Sequence[int]) -> Plan | None:
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


def lift(plane: Tensor, sizes: Sequence[int], made: Sequence[Sequence[int]]) -> Tensor:
    """A plane seen in the factors of its dimensions."""
    shape = [1] * len(sizes)
    for dim, places in enumerate(made):
        if plane.shape[dim] > 1:
            for place in places:
                shape[place] = sizes[place]
    return plane.reshape(shape)


def gather(plane: Tensor, sizes: Sequence[int], made: Sequence[Sequence[int]]) -> Tensor:
    """A plane seen in factors, put together to the dimensions they make."""
    full = {p for places in made for p in places if any(plane.shape[q] > 1 for q in places)}
    plane = plane.expand([size if place in full else plane.shape[place] for place, size in enumerate(sizes)])
    shape = [int(torch.Size([plane.shape[p] for p in places]).numel()) for places in made]
    return plane.reshape(shape)


def reshape(plane: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """The plane of a reshaped tensor."""
    plan = factor(before, after)
    if plan is None:
        if plane.numel() == 1:
            return plane.reshape([1] * len(after))
        return plane.expand(tuple(before)).reshape(tuple(after))
    sizes, made_before, made_after = plan
    return gather(lift(plane, sizes, made_before), sizes, made_after)


def permutation(step: Step, rank: int) -> list[int]:
    """The order in which a step puts dimensions."""
    order = list(range(rank))
    if step.name == "permute":
        return [d % rank for d in step.args["dims"]]
    if step.name == "t":
        return order[::-1]
    if rank:
        first, second = step.args["dim0"] % rank, step.args["dim1"] % rank
        order[first], order[second] = order[second], order[first]
    return order


def stretches(step: Step, tape: Tape) -> list[tuple[int, int]] | None:
    """Start and length of the parts into which a step cuts a dimension; None if they are no plain stretches."""
    shape = tape.shapes[step.inputs[0]]
    dim = step.args["dim"] % len(shape)
    if step.name == "slice":
        start, end = step.args.get("start") or 0, step.args.get("end")
        if (step.args.get("step") or 1) != 1:
            return None
        first, last, _ = slice(start, end).indices(shape[dim])
        return [(first, max(0, last - first))]
    if step.name == "select":
        return [(step.args["index"] % shape[dim], 1)]
    if step.name == "unbind":
        return [(i, 1) for i in range(shape[dim])]
    lengths = [tape.shapes[out][dim] for out in step.outputs]
    return [(sum(lengths[:i]), length) for i, length in enumerate(lengths)]


def compressed(plane: Tensor) -> Tensor:
    """The same plane with size one along dimensions that were written out by `expand` only."""
    for dim in range(plane.dim()):
        if plane.shape[dim] > 1 and plane.stride(dim) == 0:
            plane = plane.narrow(dim, 0, 1)
    return plane


def move(step: Step, tape: Tape, planes: Sequence[Tensor]) -> list[Tensor]:
    """The planes of what a moving step made, from those of what it read."""
    shape, rank = tape.shapes[step.inputs[0]], len(tape.shapes[step.inputs[0]])
    after, plane = tape.shapes[step.outputs[0]], planes[0]
    if step.name in VIEWS:
        return [reshape(plane, shape, after)]
    if step.name in PERMUTATIONS:
        return [plane.permute(permutation(step, rank))]
    if step.name == "expand":
        return [plane.reshape([1] * (len(after) - rank) + list(plane.shape))]
    if step.name in LOOKUPS:
        return [_looked_up(step, plane, len(after))]
    if step.name == "slice" and step.inputs[0] in tape.leaves:  # of a longer input it might be more
        return [some(plane, [step.args["dim"]], keepdim=True)]
    if step.name in PARTS:
        return [compressed(part) for part in _rerun(step, [plane.expand(shape)])]
    if step.name in ("cat", "stack") and len(planes) == len(step.inputs):
        return [_cat(step, tape, planes)]
    if step.name == "constant_pad_nd":
        return [lit(padded) if step.args.get("value") else padded for padded in [_pad(plane, step)]]
    if step.name in KEEPING and all(plane.shape[d] == 1 for d in touched(step, rank)):
        return [plane]
    return _rerun(step, [p.expand(tape.shapes[n]).float() for p, n in zip(planes, step.inputs, strict=False)])


def _looked_up(step: Step, plane: Tensor, rank: int) -> Tensor:
    """Any of the rows may be the one that is asked for."""
    if step.name == "index_select":
        looked = [step.args["dim"] % plane.dim()]
    else:
        looked = [dim for dim, table in enumerate(step.args["indices"]) if table is not None]
    new = rank - plane.dim()
    if len(looked) != 1 or new < 0:
        return some(plane, range(plane.dim())).reshape([1] * rank)
    dim = looked[0]
    plane = some(plane, [dim], keepdim=True)
    return plane.reshape([*plane.shape[:dim], *[1] * (new + 1), *plane.shape[dim + 1 :]])


def touched(step: Step, rank: int) -> list[int]:
    """The dimensions along which a step moves elements, for steps that keep the order of dimensions."""
    if step.name == "constant_pad_nd":
        pads = step.args["pad"]
        return [rank - 1 - i for i in range(len(pads) // 2) if any(pads[2 * i : 2 * i + 2])]
    dims = step.args["dims"] if step.name in ("roll", "flip") else [step.args["dim"]]
    return [d % rank for d in dims] or list(range(rank))


def _pad(plane: Tensor, step: Step) -> Tensor:
    """Pad along the dimensions on which the plane depends."""
    pads = list(step.args["pad"])
    for i in range(len(pads) // 2):
        if plane.shape[plane.dim() - 1 - i] == 1:
            pads[2 * i : 2 * i + 2] = [0, 0]
    return torch.nn.functional.pad(plane.float(), pads)


def _cat(step: Step, tape: Tape, planes: Sequence[Tensor]) -> Tensor:
    """Legacy empty tensors, which `cat` skips, have no place in the result."""
    if step.name == "stack":
        dim = step.args["dim"] % (planes[0].dim() + 1)
        planes = [p.unsqueeze(dim) for p in planes]
        sizes = [1] * len(planes)
    else:
        pairs = [(p, tape.shapes[n]) for p, n in zip(planes, step.inputs, strict=True) if tape.shapes[n] != (0,)]
        dim = step.args["dim"] % len(pairs[0][1])
        planes, sizes = [p for p, _ in pairs], [s[dim] for _, s in pairs]
    common = common_shape([(*p.shape[:dim], 1, *p.shape[dim + 1 :]) for p in planes])
    parts = [p.expand([*common[:dim], size, *common[dim + 1 :]]) for p, size in zip(planes, sizes, strict=True)]
    return torch.cat(parts, dim)


def _rerun(step: Step, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Do the step itself, on other tensors."""
    given = dict(zip(step.inputs, tensors, strict=False))

    def resolve(leaf: Any) -> Any:
        return given[leaf.number] if isinstance(leaf, Ref) else leaf

    args = {name: pytree.tree_map(resolve, value) for name, value in step.args.items()}
    positional = [a.name for a in step.op._schema.arguments if not a.kwarg_only]
    result = step.op(*[args.pop(name) for name in positional if name in args], **args)
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
