"""What is always zero: now and at every step of training.

Each tensor has a *plane*: one where an element may be nonzero, zero where it is always zero. The rules below compute
the planes of an operation's results. They use only sums and products of planes, chosen so that the derivative of a
rule is nonzero exactly where a gradient may pass; so autograd finds out where gradients may arrive. Planes are boolean
where no gradients are asked for, floating otherwise.

A weight that is zero now without being masked (a bias, a shift, a running mean) stays zero as long as its gradient is
zero, which may depend on zeros that it causes itself: ReLU's slope at zero is zero, GELU's is one half. So all of them
are assumed to stay zero, and those for which that does not follow are dropped, until it follows for all. By induction
over training steps, it then holds for SGD and Adam with any momentum and weight decay.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import is_strict
from ..record import aten_names as aten
from ..record.tape import Step, Tape
from .planes import compressed, contraction, lit, looked_up, move, product, settled, some

# A plane for each tensor on a tape, ones where no rule says anything about it; under None for an argument not given.
Planes = dict[int | None, Tensor]


def alive_in_training(tape: Tape, leaves: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Planes:
    """For each tensor on the tape, where it may ever be nonzero, now or in training.

    `leaves` are the model's parameters and buffers by name, pruned weights at zero.
    """
    kernels = _kernels(tape)
    alive: dict[int, Tensor] = {}
    able: dict[int, Tensor] = {}  # where it can become nonzero: not what is masked, or a buffer that nothing writes to
    for number, name in tape.leaves.items():
        alive[number] = _anywhere(leaves[name] != 0, number in kernels)
        if number in tape.written:
            alive[number] = torch.ones_like(alive[number])
        if name in masks:
            able[number] = _anywhere(masks[name], number in kernels)
        elif not isinstance(leaves[name], torch.nn.Parameter):
            able[number] = alive[number]
    while True:
        planes, reached = nonzero_and_reached(tape, alive)
        woken = {number: plane & able[number] if number in able else plane for number, plane in reached.items()}
        for step in tape.steps:
            mean = step.ref("running_mean")
            if step.name in aten.BATCH_NORMS and mean in woken:  # it follows what it averages
                woken[mean] = woken[mean] | channels(planes[step.inputs[0]])
        if not any(bool((plane & ~alive[number]).any()) for number, plane in woken.items()):
            return planes
        alive = {number: plane | woken[number] for number, plane in alive.items()}


def _anywhere(alive: Tensor, kernel: bool) -> Tensor:
    """Kernels of convolutions are told apart by channels only, which saves looking at every weight again and again."""
    if not kernel or alive.dim() <= 2:
        return alive
    return alive.flatten(2).any(-1).reshape(*alive.shape[:2], *[1] * (alive.dim() - 2))


def _kernels(tape: Tape) -> set[int]:
    """Leaves that steps read as the kernel of a convolution, and in no other role."""
    found = {
        (number, step.name == "convolution" and number == step.ref("weight"))
        for step in tape.steps
        for number in step.inputs
    }
    return {number for number in tape.leaves if (number, True) in found and (number, False) not in found}


def nonzero_only(tape: Tape, alive: Mapping[int, Tensor]) -> Planes:
    """Where each tensor may be nonzero if the given leaves are nonzero only in these places."""
    planes: Planes = {n: torch.ones([1] * len(shape), dtype=torch.bool) for n, shape in enumerate(tape.shapes)}
    planes[None] = torch.zeros((), dtype=torch.bool)
    planes.update(alive.items())
    for step in tape.steps:
        try:
            found = _planes(planes, tape, step)
        except Exception as cause:
            if is_strict():
                raise
            where = step.module or "the model itself"
            tape.remarks.add(f"no rule for this form of {step.name} in {where} ({type(cause).__name__}: {cause})")
            found = None
        if found is None:  # all results may be nonzero, and if one has a gradient, so may everything that was read
            read = [planes[n].sum() for n in step.inputs if planes[n].requires_grad]
            if read:
                # Expanded, which takes no memory, since its gradient may differ from element to element.
                anything = lit(torch.stack(read).sum())
                planes.update((out, anything.expand(tape.shapes[out])) for out in step.outputs)
        else:
            planes.update((out, settled(plane)) for out, plane in zip(step.outputs, found, strict=False))
    return planes


def nonzero_and_reached(tape: Tape, alive: Mapping[int, Tensor]) -> tuple[Planes, dict[int, Tensor]]:
    """Where each tensor may be nonzero, and where gradients may reach the given leaves."""
    with torch.enable_grad():
        leaves = {number: plane.float().requires_grad_() for number, plane in alive.items()}
        planes = nonzero_only(tape, leaves)
        results = [planes[number].sum() for number in tape.outputs if planes[number].requires_grad]
        found: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if results:
            found = torch.autograd.grad(torch.stack(results).sum(), list(leaves.values()), allow_unused=True)
    reached = {n: torch.zeros_like(alive[n]) if g is None else g > 0 for n, g in zip(leaves, found, strict=True)}
    return {number: compressed(plane.detach()) > 0 for number, plane in planes.items()}, reached


def _planes(planes: Planes, tape: Tape, step: Step) -> list[Tensor] | None:
    """The planes of a step's results; None if there is no rule."""
    name, dim = step.name, step.args.get("dim", 0)
    read = [planes[number] for number in step.inputs]
    if name in aten.OPERANDS:
        c = contraction(step, tape)
        found, bias = c.show(product(c.see(planes[c.x], 0), c.see(planes[c.y], 1))), planes[c.bias]
        return [found + (_per_channel(bias, found.dim()) if c.groups else bias)]
    if name == "slice" and step.inputs[0] in tape.leaves:  # of a longer input it might be more
        return [some(read[0], [dim], keepdim=True)]
    if name in aten.MOVES:
        return move(step, tape, [plane for n, plane in zip(step.inputs, read, strict=True) if tape.shapes[n] != (0,)])
    if name in aten.LOOKUPS:
        return [_lines(step, tape, read[0])]
    if name in aten.BATCH_NORMS:
        return [_normalised(planes, step)]
    if name in ("zeros", "new_zeros", "zeros_like"):
        return [torch.zeros([1] * len(tape.shapes[step.outputs[0]]), dtype=torch.bool)]
    if name in aten.SCATTERED:
        first, *others = (some(planes[number], [dim], keepdim=True) for number in scattered(step))
        return [first + others[0] if others else first]
    if name in aten.POOLS:
        return [some(read[0], range(2, read[0].dim()), keepdim=True)]
    if name in aten.ALONG:
        return [lit(some(read[0], [dim], keepdim=True))]
    if name in aten.REDUCED_ONCE:
        return [some(read[0], reduced(step, read[0].dim()), bool(step.args.get("keepdim")))]
    return [_combined(step, read)] if aten.elementwise(name, step.op) and name not in aten.FILLED else None


def _lines(step: Step, tape: Tape, x: Tensor) -> Tensor:
    """Lines that are looked up by number: any of them may be the one that is asked for."""
    where, rank = looked_up(step, tape), len(tape.shapes[step.outputs[0]])
    if where is None:
        return some(x, range(x.dim())).reshape([1] * rank)
    dim, new = where
    x = some(x, [dim])
    return x.reshape([*x.shape[:dim], *[1] * new, *x.shape[dim:]])


def _normalised(planes: Planes, step: Step) -> Tensor:
    """Batch norm: a channel that is always zero is shifted by its mean, scaled, shifted."""
    x = planes[step.inputs[0]]
    found = settled(channels(x) + planes[step.ref("running_mean")])
    if (gain := step.ref("weight")) is not None:
        found = found * planes[gain]
    return _per_channel(found + planes[step.ref("bias")], x.dim())


def _combined(step: Step, planes: list[Tensor]) -> Tensor:
    """Operations element by element: of one tensor, whose value and slope at zero are known, or of several."""
    first, others = planes[0], planes[1:]
    if step.at_zero is not None:
        value, slope = step.at_zero
        if value != 0 or not math.isfinite(slope):
            return lit(first)
        return first if slope else first * first  # no gradient passes where the slope is zero: that of x * x is, too
    match step.name, len(planes):
        case "_prelu_kernel" | "rrelu_with_noise", _:  # the gradient of a slope is a multiple of the input
            along = others[0].dim() == 1 and others[0].numel() > 1 and first.dim() > 1
            return first * lit(_per_channel(others[0], first.dim()) if along else others[0])
        case "add" | "sub" | "rsub", 2:
            return first + others[0]
        case "mul", 2:
            return first * others[0]
        case "div", 2:
            return first * lit(others[0])
        case "masked_fill", 2 if step.args.get("value") == 0:
            return first * lit(others[0])
        case "addcmul", 3:
            return first + others[0] * others[1]
    return lit(functools.reduce(Tensor.__add__, planes))


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
    """The dimensions that an operation such as a mean runs over: all where it names none."""
    dims = step.args.get("dim", step.args.get("dims"))
    dims = [dims] if isinstance(dims, int) else list(dims or range(rank))
    return sorted(d % rank for d in dims) if rank else []
