"""What may be nonzero, and what may have a gradient, where some weights are zero.

Each tensor has a *plane*: one where an element may be nonzero, zero where it is always zero. The rules below compute
the planes of an operation's results. They use only sums and products of planes, chosen so that the derivative of a
rule is nonzero exactly where a gradient may pass; so autograd finds out where gradients may arrive. Planes are boolean
where no gradients are asked for, floating otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..record import aten_names as aten
from ..record.tape import Step, Tape
from .planes import compressed, contraction, lit, move, product, settled, some

__all__ = ["batch_norm_parts", "channels", "nonzero_and_felt", "nonzero_only", "reduced", "scattered"]


@dataclass
class _State:
    """The planes found so far; `gradients` says whether they are floating, to be differentiated."""

    tape: Tape
    planes: dict[int, Tensor]
    gradients: bool

    def value(self, number: int | None) -> Tensor:
        """The plane of a tensor: ones if no rule has said anything about it, zero for an argument that is not given."""
        if number is None:
            return torch.zeros((), dtype=torch.bool)
        if number not in self.planes:
            self.planes[number] = torch.ones([1] * len(self.tape.shapes[number]), dtype=torch.bool)
        return self.planes[number]

    def unknown(self, step: Step) -> None:
        """All results may be nonzero, and if one has a gradient, so may everything that was read."""
        for out in step.outputs:
            self.planes[out] = torch.ones([1] * len(self.tape.shapes[out]), dtype=torch.bool)
            read = [plane.sum() for n in step.inputs if (plane := self.value(n)).requires_grad]
            if read:
                # Written out in full (without taking memory): its gradient may differ from element to element.
                self.planes[out] = lit(torch.stack(read).sum()).expand(self.tape.shapes[out])


def nonzero_only(tape: Tape, alive: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Where each tensor may be nonzero if the given leaves are only in these places."""
    return _follow(tape, alive, gradients=False).planes


def nonzero_and_felt(tape: Tape, alive: Mapping[int, Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Where each tensor may be nonzero, and where the gradients of the given leaves may be."""
    with torch.enable_grad():
        leaves = {number: plane.float().requires_grad_() for number, plane in alive.items()}
        state = _follow(tape, leaves, gradients=True)
        results = [plane.sum() for number in tape.outputs if (plane := state.value(number)).requires_grad]
        found: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if results:
            found = torch.autograd.grad(torch.stack(results).sum(), list(leaves.values()), allow_unused=True)
    felt = {n: torch.zeros_like(alive[n]) if g is None else g > 0 for n, g in zip(leaves, found, strict=True)}
    return {number: compressed(plane.detach()) > 0 for number, plane in state.planes.items()}, felt


def _follow(tape: Tape, alive: Mapping[int, Tensor], gradients: bool) -> _State:
    state = _State(tape, dict(alive), gradients)
    for step in tape.steps:
        try:
            found = _planes(state, step)
        except (RuntimeError, IndexError, ValueError, TypeError, KeyError):  # a form of the operation without a rule
            found = None
        if found is None:
            state.unknown(step)
        else:
            for out, plane in zip(step.outputs, found, strict=False):
                state.planes[out] = settled(plane)
    return state


def _planes(state: _State, step: Step) -> list[Tensor] | None:
    """The planes of a step's results; None if there is no rule."""
    name, tape, dim = step.name, state.tape, step.args.get("dim", 0)
    if (c := contraction(step, tape)) is not None:
        found = c.show(product(c.see(state.value(c.x), 0), c.see(state.value(c.y), 1)))
        bias = state.value(c.bias)
        return [found + (_per_channel(bias, found.dim()) if c.groups else bias)]
    if name == "slice" and step.inputs[0] in tape.leaves:  # of a longer input it might be more
        return [some(state.value(step.inputs[0]), [dim], keepdim=True)]
    if name in aten.MOVES:
        joined = [number for number in step.inputs if tape.shapes[number] != (0,)]
        moved = joined if name in ("cat", "stack") else step.inputs[:1]
        return move(step, tape, [state.value(number) for number in moved])
    if name in aten.BATCH_NORMS:
        return [_normalised(state, step)]
    if name in ("zeros", "new_zeros", "zeros_like"):
        return [torch.zeros([1] * len(tape.shapes[step.outputs[0]]), dtype=torch.bool)]
    if name in aten.SCATTERED:
        first, *others = (some(state.value(number), [dim], keepdim=True) for number in scattered(step))
        return [first + others[0] if others else first]
    if name == "embedding":
        columns = some(state.value(step.ref("weight")), [0])
        return [columns.reshape([1] * (len(tape.shapes[step.outputs[0]]) - 1) + [-1])]
    planes = [state.value(number) for number in step.inputs]
    if name in aten.BINARY:
        return [_combined(step, planes)]
    return next(([rule(step, *planes)] for names, rule in _OF_ONE if name in names), None)


def _normalised(state: _State, step: Step) -> Tensor:
    """Batch norm: a channel that is always zero is shifted by its mean, scaled, shifted."""
    x = state.value(step.inputs[0])
    gain, rank = step.ref("weight"), x.dim()
    found = settled(channels(x) + state.value(step.ref("running_mean")))
    if gain is not None:
        found = found * state.value(gain)
    return _per_channel(found + state.value(step.ref("bias")), rank)


def _slope(_: Step, x: Tensor, *slopes: Tensor) -> Tensor:
    """Zero at zero with a slope there, which may be learnt (PReLU): its gradient is a multiple of the input."""
    for slope in slopes:
        along = slope.dim() == 1 and slope.numel() > 1 and x.dim() > 1
        x = x * lit(_per_channel(slope, x.dim()) if along else slope)
    return x


# Rules of operations on one tensor. No gradient passes the flat ones at zero: the derivative of x * x is zero there.
_OF_ONE: tuple[tuple[set[str], Callable[..., Tensor]], ...] = (
    (aten.FLAT, lambda _, x: x * x),
    (aten.ODD | aten.SAME, _slope),
    (aten.OTHER_UNARY, lambda _, x, *_others: lit(x)),
    (aten.POOLS, lambda _, x, *_others: some(x, range(2, x.dim()), keepdim=True)),
    (aten.ALONG, lambda step, x, *_others: lit(some(x, [step.args["dim"]], keepdim=True))),
    (aten.REDUCED_ONCE, lambda step, x: some(x, reduced(step, x.dim()), bool(step.args.get("keepdim")))),
)


def _combined(step: Step, planes: list[Tensor]) -> Tensor:
    """Operations of two or more tensors, or of a tensor and a number."""
    name, args, first = step.name, step.args, planes[0]
    match name, len(planes):
        case "add" | "sub", 2:
            return first + planes[1]
        case "add" | "sub", 1:
            return first if args["other"] == 0 else lit(first)
        case "mul", 2:
            return first * planes[1]
        case "div", 2:
            return first * lit(planes[1])
        case "mul" | "div" | "true_divide", _:
            return first
        case "pow", 1 if isinstance(args["exponent"], int | float) and args["exponent"] >= 1:
            return first * first if args["exponent"] > 1 else first
        case "hardtanh", 1 if args["min_val"] <= 0 <= args["max_val"]:
            return first * first if 0 in (args["min_val"], args["max_val"]) else first
        case "masked_fill", 2 if args.get("value") == 0:
            return first * lit(planes[1])
        case "addcmul", 3:
            return first + planes[1] * planes[2]
    total = first
    for plane in planes[1:]:
        total = total + plane
    return lit(total)


def scattered(step: Step) -> list[int]:
    """What a step moves along a dimension to or from places that a table of numbers says."""
    return [number for name in ("self", "source", "src") if (number := step.ref(name)) is not None]


def batch_norm_parts(step: Step) -> list[int]:
    """What a batch norm reads per channel: gain, shift, running mean and variance, as far as it has them."""
    names = ("weight", "bias", "running_mean", "running_var")
    return [number for name in names if (number := step.ref(name)) is not None]


def channels(plane: Tensor) -> Tensor:
    """What holds for any element of a channel (the second dimension)."""
    return some(plane, [dim for dim in range(plane.dim()) if dim != 1])


def _per_channel(plane: Tensor, rank: int) -> Tensor:
    """A channel's plane beside an activation."""
    return plane.reshape(1, -1, *[1] * (rank - 2)) if plane.dim() else plane


def reduced(step: Step, rank: int) -> list[int]:
    """The dimensions that a reduction runs over."""
    dims = step.args.get("dim")
    dims = [dims] if isinstance(dims, int) else list(dims or range(rank))
    return sorted(d % rank for d in dims) if rank else []
