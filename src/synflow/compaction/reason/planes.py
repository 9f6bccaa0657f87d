"""Planes: boolean tensors, or floating ones of zeros and ones where autograd follows gradients through the rules.

A plane has the rank of the tensor that it describes, and size one along dimensions on which it does not depend.

Matrix products and convolutions of every kind are seen as one batched matrix product: `x` becomes (batch, m, k), `y`
(batch, k, n), the output (batch, m, n); groups of a convolution are the batch, and positions of a kernel or an image
fold into one by `any`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...flow.tensor import saturated
from ..record.aten_names import OPERANDS, VIEWS
from ..record.tape import Step, Tape


def settled(plane: Tensor) -> Tensor:
    """Zeros and ones again after sums and products, values and gradients alike, so that neither overflows."""
    if plane.requires_grad:
        return saturated(plane)
    return plane if plane.dtype == torch.bool else plane > 0


def some(plane: Tensor, dims: Iterable[int], keepdim: bool = False) -> Tensor:
    """Is there a one along these dimensions?"""
    places = tuple(dims)
    if not places:
        return plane
    if plane.requires_grad:
        return settled(plane.sum(places, keepdim=keepdim))
    return torch.any(plane, places, keepdim=keepdim) if len(places) > 1 else plane.any(places[0], keepdim=keepdim)


def lit(plane: Tensor) -> Tensor:
    """All ones, with the gradient of the plane."""
    if plane.requires_grad:
        return plane + (1 - plane).detach()
    return torch.ones_like(plane)


def compressed(plane: Tensor) -> Tensor:
    """The same plane with size one along dimensions that were written out by `expand` only."""
    for dim in range(plane.dim()):
        if plane.shape[dim] > 1 and plane.stride(dim) == 0:
            plane = plane.narrow(dim, 0, 1)
    return plane


def move(step: Step, tape: Tape, planes: Sequence[Tensor]) -> list[Tensor]:
    """Apply a step that only moves elements to planes, or to units."""
    if step.name in ("cat", "stack"):
        return [_cat(step, tape, planes)]
    plane = (planes[0].float() if planes[0].dtype == torch.bool else planes[0]).expand(tape.shapes[step.inputs[0]])
    found = [plane.reshape(tape.shapes[step.outputs[0]])] if step.name in VIEWS else step.redo([plane])
    return [lit(plane) if step.args.get("value") else compressed(plane) for plane in found]


def looked_up(step: Step, tape: Tape) -> tuple[int, int] | None:
    """The dimension along which entries are looked up by number, and how many dimensions replace it."""
    rank, after = (len(tape.shapes[number]) for number in (step.inputs[0], step.outputs[0]))
    tables = [step.args.get("dim", 0) % rank]
    if step.name == "index":
        tables = [dim for dim, table in enumerate(step.args["indices"]) if table is not None]
    new = after - rank + 1
    return (tables[0], new) if len(tables) == 1 and new > 0 else None


def _cat(step: Step, tape: Tape, planes: Sequence[Tensor]) -> Tensor:
    """The same for `cat` and `stack`; `cat` skips empty tensors of one dimension."""
    sizes = [tape.shapes[number] for number in step.inputs if tape.shapes[number] != (0,)]
    if step.name == "stack":
        planes, sizes = [p.unsqueeze(step.args["dim"]) for p in planes], [(1,) * (len(size) + 1) for size in sizes]
    dim = step.args["dim"] % len(sizes[0])
    common = np.broadcast_shapes(*((*p.shape[:dim], 1, *p.shape[dim + 1 :]) for p in planes))
    parts = [p.expand([*common[:dim], size[dim], *common[dim + 1 :]]) for p, size in zip(planes, sizes, strict=True)]
    return torch.cat(parts, dim)


@dataclass(frozen=True)
class Contraction:
    """A step as batched matrix product; `groups` is 0 for matrix products."""

    x: int
    y: int
    out: int
    bias: int | None
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    groups: int
    transposed: bool

    def see(self, plane: Tensor, which: int) -> Tensor:
        """The plane of `x` (0), `y` (1) or the output (2), with the dimension written out that is summed over."""
        shape = self.shapes[which]
        if not self.groups:
            if len(shape) == 2:
                plane, shape = plane.unsqueeze(0), (1, *shape)
            summed = 1 if which == 1 else 2
            return plane.expand(*[size if d == summed else plane.shape[d] for d, size in enumerate(shape)])
        if which != 1:
            flat = some(plane, [d for d in range(plane.dim()) if d != 1])
            return flat.expand(shape[1]).reshape(self.groups, 1, -1)
        flat = some(plane.expand(*shape[:2], *plane.shape[2:]), range(2, plane.dim()))
        flat = flat.reshape(self.groups, -1, shape[1])
        return flat if self.transposed else flat.transpose(1, 2)

    def show(self, plane: Tensor) -> Tensor:
        """A plane (batch, m, n) of the output in the output's own shape."""
        shape = self.shapes[2]
        if self.groups:
            return plane.reshape(1, shape[1], *[1] * (len(shape) - 2))
        return plane if len(shape) == 3 else plane.squeeze(0)


def contraction(step: Step, tape: Tape) -> Contraction:
    """A sum of products (one of `OPERANDS`) as a contraction."""
    first, second, third = OPERANDS[step.name]
    x, y, out = step.args[first].number, step.args[second].number, step.outputs[0]
    shapes = (tape.shapes[x], tape.shapes[y], tape.shapes[out])
    groups, transposed = step.args.get("groups", 0), bool(step.args.get("transposed"))
    return Contraction(x, y, out, step.ref(third), shapes, groups, transposed)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Boolean matrix product: is there a k for which both are true? A k of size one stands for all."""
    k = max(x.shape[-1], y.shape[-2])
    x, y = x.expand(*x.shape[:-1], k), y.expand(*y.shape[:-2], k, y.shape[-1])
    if x.requires_grad or y.requires_grad:
        return torch.matmul(x.float(), y.float())
    if x.numel() == k > 0:  # a single row: what any of its columns reaches
        rows = y if bool(x.all()) else y & x.transpose(-1, -2)
        reached = rows.view(torch.uint8).amax(-2, keepdim=True).bool()  # `any` takes ten times as long
        return reached.expand(*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), *reached.shape[-2:])
    return torch.matmul(x.float(), y.float()) > 0
