"""Sums of products: matrix products and convolutions of every kind, all seen as one batched matrix product.

`x` becomes (batch, m, k), `y` (batch, k, n), the output (batch, m, n); groups of a convolution are the batch. Planes
are boolean ("may be nonzero"), so positions of a kernel or an image fold into one by `any`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..record.tape import Step, Tape
from .planes import some

__all__ = ["CONTRACTIONS", "Contraction", "contraction", "product"]

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
