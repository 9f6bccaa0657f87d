"""Planes: boolean tensors, or floating ones of zeros and ones where autograd follows gradients through the rules.

A plane has the rank of the tensor that it describes, and size one along dimensions on which it does not depend.

Matrix products and convolutions of every kind are seen as one batched matrix product: `x` becomes (batch, m, k), `y`
(batch, k, n), the output (batch, m, n); groups of a convolution are the batch, and positions of a kernel or an image
fold into one by `any`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...support.private_torch import pytree
from ..record.aten_names import LOOKUPS, VIEWS
from ..record.tape import Ref, Step, Tape
from .units import common_shape

__all__ = [
    "CONTRACTIONS",
    "Contraction",
    "compressed",
    "contraction",
    "lit",
    "move",
    "product",
    "redo",
    "settled",
    "some",
]


class _Sign(torch.autograd.Function):
    """Brings sums back to zeros and ones, values and gradients alike, so that neither overflows at any depth."""

    @staticmethod
    def forward(ctx: Any, plane: Tensor) -> Tensor:
        return (plane > 0).to(plane.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (gradient > 0).to(gradient.dtype)


def settled(plane: Tensor) -> Tensor:
    """Zeros and ones again, after sums and products."""
    if plane.requires_grad:
        settled: Tensor = _Sign.apply(plane)
        return settled
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
    """The planes of what a step made that only moves elements: the step itself, done to planes."""
    if step.name in LOOKUPS:
        return [_looked_up(step, planes[0], len(tape.shapes[step.outputs[0]]))]
    if step.name == "slice" and step.inputs[0] in tape.leaves:  # of a longer input it might be more
        return [some(planes[0], [step.args["dim"]], keepdim=True)]
    if step.name in ("cat", "stack"):
        return [_cat(step, tape, planes)]
    full = [plane.float().expand(tape.shapes[n]) for plane, n in zip(planes, step.inputs, strict=False)]
    if step.name in VIEWS:
        found = [full[0].reshape(tape.shapes[step.outputs[0]])]
    else:
        found = redo(step, full)
    return [lit(plane) if step.args.get("value") else compressed(plane) for plane in found]


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


def redo(step: Step, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Do the step itself, on other tensors."""
    given = dict(zip(step.inputs, tensors, strict=False))

    def resolve(leaf: Any) -> Any:
        return given[leaf.number] if isinstance(leaf, Ref) else leaf

    args = {name: pytree.tree_map(resolve, value) for name, value in step.args.items()}
    positional = [a.name for a in step.op._schema.arguments if not a.kwarg_only]
    result = step.op(*[args.pop(name) for name in positional if name in args], **args)
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


CONTRACTIONS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}
_OPERANDS = {"mm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "bmm": ("self", "mat2"),
             "baddbmm": ("batch1", "batch2"), "convolution": ("input", "weight")}  # fmt: skip


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

    def see_x(self, plane: Tensor) -> Tensor:
        shape = self.shapes[0]
        if not self.groups:
            return _batched(plane, shape, 1)
        return _folded(plane).expand(1, shape[1]).reshape(self.groups, 1, -1)

    def see_y(self, plane: Tensor) -> Tensor:
        shape = self.shapes[1]
        if not self.groups:
            return _batched(plane, shape, 0)
        flat = some(plane.expand(shape[0], shape[1], *plane.shape[2:]), range(2, plane.dim()))
        if self.transposed:
            return flat.reshape(self.groups, -1, shape[1])
        return flat.reshape(self.groups, -1, shape[1]).transpose(1, 2)

    def see_out(self, plane: Tensor) -> Tensor:
        shape = self.shapes[2]
        if not self.groups:
            return _batched(plane, shape, 1)
        return _folded(plane).expand(1, shape[1]).reshape(self.groups, 1, -1)

    def show_out(self, plane: Tensor) -> Tensor:
        shape = self.shapes[2]
        if not self.groups:
            return plane if len(shape) == 3 else plane.squeeze(0)
        return plane.reshape(1, shape[1], *[1] * (len(shape) - 2))


def contraction(step: Step, tape: Tape) -> Contraction | None:
    """The step as a contraction, None if it is something else."""
    if step.name not in CONTRACTIONS:
        return None
    x, y = (step.ref(name) for name in _OPERANDS[step.name])
    assert x is not None
    assert y is not None
    out = step.outputs[0]
    bias = step.ref("bias") if step.name == "convolution" else step.ref("self") if "add" in step.name else None
    shapes = (tape.shapes[x], tape.shapes[y], tape.shapes[out])
    groups = step.args["groups"] if step.name == "convolution" else 0
    return Contraction(x, y, out, bias, shapes, groups, bool(step.args.get("transposed")))


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


def _folded(plane: Tensor) -> Tensor:
    """(batch, channels, positions...) to (1, channels)."""
    return some(plane, [d for d in range(plane.dim()) if d != 1]).unsqueeze(0)


def _batched(plane: Tensor, shape: tuple[int, ...], summed: int) -> Tensor:
    """A matrix, or a batch of them, with the dimension that is summed over written out."""
    if len(shape) == 2:
        plane, shape = plane.unsqueeze(0), (1, *shape)
    dim = 1 + summed
    return plane.expand(*[size if d == dim else plane.shape[d] for d, size in enumerate(shape)])
