"""Operations that only move elements about, applied to tensors that broadcast over the shapes they describe.

A *plane* says something about each element of a tensor. It has the tensor's rank, and size one along dimensions on
which what it says does not depend, so planes of large activations stay small.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..record.aten_names import KEEPING, LOOKUPS, PARTS, PERMUTATIONS, VIEWS
from ..record.tape import Ref, Step, Tape
from .units import common_shape

__all__ = [
    "factor",
    "gather",
    "lift",
    "move",
    "move_back",
    "permutation",
    "reduce_to",
    "reshape",
    "stretches",
    "touched",
]


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


def reduce_to(plane: Tensor, shape: Sequence[int]) -> Tensor:
    """The plane of an operand that was broadcast: true where any of its copies is."""
    while plane.dim() > len(shape):
        plane = plane.any(0)
    for dim, size in enumerate(shape):
        if size == 1 and plane.shape[dim] > 1:
            plane = plane.any(dim, keepdim=True)
    return plane


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


def move(step: Step, tape: Tape, planes: Sequence[Tensor]) -> list[Tensor]:
    """The planes of what a moving step made, from those of what it read."""
    shape, rank = tape.shapes[step.inputs[0]], len(tape.shapes[step.inputs[0]])
    plane = planes[0]
    if step.name in VIEWS:
        return [reshape(plane, shape, tape.shapes[step.outputs[0]])]
    if step.name in PERMUTATIONS:
        return [plane.permute(permutation(step, rank))]
    if step.name == "expand":
        return [plane.reshape([1] * (len(tape.shapes[step.outputs[0]]) - rank) + list(plane.shape))]
    if step.name in LOOKUPS:
        return [_looked_up(step, tape, plane)]
    if step.name in PARTS:
        dim, parts = step.args["dim"] % rank, stretches(step, tape)
        if step.inputs[0] in tape.leaves and step.name == "slice":  # of a longer input it might be more
            return [plane.any(dim, keepdim=True)]
        if parts is not None:
            cut = [plane if plane.shape[dim] == 1 else plane.narrow(dim, *part) for part in parts]
            return [c.select(dim, 0) for c in cut] if step.name in ("select", "unbind") else cut
    if step.name in ("cat", "stack") and len(planes) == len(step.inputs):
        return [_cat(step, tape, planes)]
    if step.name == "constant_pad_nd":
        return [_pad(plane, step, 1) | (step.args.get("value", 0) != 0)]
    if step.name in KEEPING and all(plane.shape[d] == 1 for d in touched(step, rank)):
        return [plane]
    if all(p.numel() == 1 for p in planes):
        same = torch.stack([p.reshape(()) for p in planes]).any()
        return [same.reshape([1] * len(tape.shapes[out])) for out in step.outputs]
    return _rerun(step, [p.expand(tape.shapes[n]) for p, n in zip(planes, step.inputs, strict=False)])


def move_back(step: Step, tape: Tape, felt: Sequence[Tensor]) -> list[Tensor]:
    """For what a moving step read: true where any element it was moved to is."""
    shapes = [tape.shapes[number] for number in step.inputs]
    shape, rank = shapes[0], len(shapes[0])
    if step.name in VIEWS:
        return [reshape(felt[0], tape.shapes[step.outputs[0]], shape)]
    if step.name in PERMUTATIONS:
        order = permutation(step, rank)
        return [felt[0].permute([order.index(d) for d in range(rank)])]
    if step.name == "expand":
        return [reduce_to(felt[0], shape)]
    if step.name in LOOKUPS:
        looked = _looked_up_dims(step, rank)
        plane = felt[0].reshape(-1).any().reshape([1] * rank)
        if len(looked) == 1 and (new := felt[0].dim() - rank) >= 0:
            plane = felt[0].flatten(looked[0], looked[0] + new).any(looked[0], keepdim=True)
        return [plane]
    if step.name in PARTS and (parts := stretches(step, tape)) is not None:
        dim = step.args["dim"] % rank
        if step.inputs[0] in tape.leaves and step.name == "slice":
            return [felt[0].any(dim, keepdim=True)]
        back = [f.unsqueeze(dim) if step.name in ("select", "unbind") else f for f in felt]
        total = torch.zeros(common_shape(_without(back, dim, shape[dim])), dtype=torch.bool)
        for part, plane in zip(parts, back, strict=True):
            total.narrow(dim, *part).logical_or_(plane)
        return [total]
    if step.name in ("cat", "stack") and len(shapes) == len(_listed(step)):
        return _uncat(step, shapes, felt[0])
    if step.name == "constant_pad_nd":
        return [_pad(felt[0], step, -1)]
    if step.name in KEEPING and all(felt[0].shape[d] == 1 for d in touched(step, rank)):
        return [felt[0]]
    if all(not bool(f.any()) for f in felt):
        return [torch.zeros([1] * len(s), dtype=torch.bool) for s in shapes]
    if all(f.numel() == 1 for f in felt):
        return [torch.ones([1] * len(s), dtype=torch.bool) for s in shapes]
    with torch.enable_grad():
        inputs = [torch.zeros(s, requires_grad=True) for s in shapes[: len(_moved(step))]]
        outputs = _rerun(step, inputs)
        full = [f.expand(o.shape).to(o.dtype) for f, o in zip(felt, outputs, strict=True)]
        gradients = torch.autograd.grad(outputs, inputs, full, allow_unused=True)
    return [torch.zeros([1] * len(s), dtype=torch.bool) if g is None else g > 0
            for s, g in zip(shapes, gradients, strict=False)]  # fmt: skip


def _looked_up_dims(step: Step, rank: int) -> list[int]:
    if step.name == "index_select":
        return [step.args["dim"] % rank]
    return [dim for dim, table in enumerate(step.args["indices"]) if table is not None]


def _looked_up(step: Step, tape: Tape, plane: Tensor) -> Tensor:
    """Any of the rows may be the one that is asked for."""
    looked, rank = _looked_up_dims(step, plane.dim()), len(tape.shapes[step.outputs[0]])
    new = rank - plane.dim()
    if len(looked) != 1 or new < 0:
        return plane.any().reshape([1] * rank)
    dim = looked[0]
    plane = plane.any(dim, keepdim=True)
    return plane.reshape([*plane.shape[:dim], *[1] * (new + 1), *plane.shape[dim + 1 :]])


def touched(step: Step, rank: int) -> list[int]:
    """The dimensions along which a step moves elements, for steps that keep the order of dimensions."""
    if step.name == "constant_pad_nd":
        pads = step.args["pad"]
        return [rank - 1 - i for i in range(len(pads) // 2) if any(pads[2 * i : 2 * i + 2])]
    dims = step.args["dims"] if step.name in ("roll", "flip") else [step.args["dim"]]
    return [d % rank for d in dims] or list(range(rank))


def _pad(plane: Tensor, step: Step, sign: int) -> Tensor:
    """Pad, or crop back, along the dimensions on which the plane depends."""
    pads = list(step.args["pad"])
    for i in range(len(pads) // 2):
        if plane.shape[plane.dim() - 1 - i] == 1:
            pads[2 * i : 2 * i + 2] = [0, 0]
    padded = torch.nn.functional.pad(plane.to(torch.uint8), [sign * p for p in pads])
    return padded > 0


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
    common = common_shape(_without(planes, dim, 1))
    return torch.cat([
        p.expand([*common[:dim], size, *common[dim + 1 :]]) for p, size in zip(planes, sizes, strict=True)
    ], dim)  # fmt: skip


def _uncat(step: Step, shapes: Sequence[tuple[int, ...]], felt: Tensor) -> list[Tensor]:
    dim = step.args["dim"] % felt.dim()
    if step.name == "stack":
        return [felt.select(dim, i if felt.shape[dim] > 1 else 0) for i in range(len(shapes))]
    back, start = [], 0
    for shape in shapes:
        if shape == (0,):
            back.append(torch.zeros(1, dtype=torch.bool))
            continue
        back.append(felt if felt.shape[dim] == 1 else felt.narrow(dim, start, shape[dim]))
        start += shape[dim]
    return back


def _without(planes: Sequence[Tensor], dim: int, size: int) -> list[tuple[int, ...]]:
    return [(*p.shape[:dim], size, *p.shape[dim + 1 :]) for p in planes]


def _listed(step: Step) -> list[Any]:
    return list(step.args.get("tensors", ()))


def _moved(step: Step) -> list[int]:
    """The tensors whose elements move."""
    return list(step.inputs) if step.name in ("cat", "stack") else [step.inputs[0]]


def _rerun(step: Step, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Do the step itself, on other tensors."""
    given = dict(zip(_moved(step), tensors, strict=False))

    def resolve(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return given[leaf.number]
        return leaf

    args = {name: pytree.tree_map(resolve, value) for name, value in step.args.items()}
    positional = [a.name for a in step.op._schema.arguments if not a.kwarg_only]
    result = step.op(*[args.pop(name) for name in positional if name in args], **args)
    return [t for t in chain(pytree.tree_leaves(result)) if isinstance(t, Tensor)]
