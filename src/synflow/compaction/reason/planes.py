"""Planes: boolean tensors, or floating ones of zeros and ones where autograd follows gradients through the rules.

A plane has the rank of the tensor that it describes, and size one along dimensions on which it does not depend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...support.private_torch import pytree
from ..record.aten_names import LOOKUPS, VIEWS
from ..record.tape import Ref, Step, Tape
from .units import common_shape

__all__ = ["compressed", "lit", "move", "settled", "some"]


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
        found = _rerun(step, full)
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


def _rerun(step: Step, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Do the step itself, on other tensors."""
    given = dict(zip(step.inputs, tensors, strict=False))

    def resolve(leaf: Any) -> Any:
        return given[leaf.number] if isinstance(leaf, Ref) else leaf

    args = {name: pytree.tree_map(resolve, value) for name, value in step.args.items()}
    positional = [a.name for a in step.op._schema.arguments if not a.kwarg_only]
    result = step.op(*[args.pop(name) for name in positional if name in args], **args)
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
