"""What is always zero, now and at every step of training, or for a network that stays as it is.

A weight that is zero now without being masked (a bias, a shift, a running mean) stays zero as long as its gradient is
zero, which in turn may hinge on zeros it causes itself: ReLU's slope at zero is zero, GELU's is one half. So all of
them are assumed to stay, and those for which that cannot be shown are dropped, until the assumption supports itself. By
induction over training steps, it then holds for SGD and Adam with any momentum and weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..record.aten_names import BATCH_NORMS
from ..record.tape import Step, Tape
from .liveness import channels, nonzero_and_felt, nonzero_only

__all__ = ["alive_as_it_is", "alive_in_training"]


def alive_in_training(tape: Tape, leaves: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """For each tensor on the tape, where it may ever be nonzero, now or in training.

    `leaves` are the model's parameters and buffers by name, pruned weights at zero.
    """
    kernels = _read_as(tape, _kernel)
    zero: dict[int, Tensor] = {}
    settled: dict[int, Tensor] = {}  # zero for good: masked, or a buffer that nothing writes to
    averaged = _running_means(tape)
    for number, name in tape.leaves.items():
        zero[number] = _everywhere(leaves[name] == 0, number in kernels)
        if number in tape.written:
            zero[number] = torch.zeros_like(zero[number])
        if name in masks:
            settled[number] = _everywhere(~masks[name], number in kernels)
        elif not isinstance(leaves[name], torch.nn.Parameter):
            settled[number] = zero[number]
    while True:
        alive, felt = nonzero_and_felt(tape, {number: ~plane for number, plane in zero.items()})
        changed = False
        for number, plane in zero.items():
            woken = plane & felt[number]
            if number in settled:
                woken &= ~settled[number]
            for source in averaged.get(number, ()):  # a running mean follows what it averages
                woken = woken | (plane & channels(alive[source]).expand(plane.shape))
            if bool(woken.any()):
                zero[number] = plane & ~woken
                changed = True
        if not changed:
            return alive


def alive_as_it_is(tape: Tape, leaves: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """For each tensor on the tape, where it may be nonzero as long as nothing is trained.

    Of what is not masked only shifts (biases, running means) count as zero where they are: in the flow, gains and
    weights that are zero everywhere count as ones.
    """
    kernels, shifts = _read_as(tape, _kernel), _read_as(tape, _shift)
    alive: dict[int, Tensor] = {}
    for number, name in tape.leaves.items():
        if name in masks:
            alive[number] = _anywhere(masks[name], number in kernels)
        elif number in shifts and number not in tape.written:
            alive[number] = leaves[name] != 0
    return nonzero_only(tape, alive)


def _everywhere(zero: Tensor, kernel: bool) -> Tensor:
    """Kernels of convolutions are told apart by channels only, which saves looking at every weight again and again."""
    return ~_anywhere(~zero, kernel) if kernel else zero


def _anywhere(alive: Tensor, kernel: bool) -> Tensor:
    """The same, for where weights are not zero."""
    if not kernel or alive.dim() <= 2:
        return alive
    flat = alive.reshape(*alive.shape[:2], -1)
    if alive.device.type == "cpu":  # torch's own `any` takes twice as long
        folded = flat.view(torch.uint8).amax(-1).bool()
    else:
        folded = flat.any(-1)
    return folded.reshape(*alive.shape[:2], *[1] * (alive.dim() - 2))


def _read_as(tape: Tape, role: Callable[[Step], set[int | None]]) -> set[int]:
    """Leaves that steps read in one role, and in no other."""
    found: set[int | None] = set()
    others: set[int] = set()
    for step in tape.steps:
        found |= (own := role(step))
        others.update(number for number in step.inputs if number not in own)
    return {number for number in tape.leaves if number in found and number not in others}


def _kernel(step: Step) -> set[int | None]:
    return {step.ref("weight")} if step.name == "convolution" else set()


def _shift(step: Step) -> set[int | None]:
    if step.name == "convolution" or step.name in BATCH_NORMS:
        return {step.ref("bias"), step.ref("running_mean")}
    return {step.ref("self")} if step.name == "addmm" else set()


def _running_means(tape: Tape) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for step in tape.steps:
        if step.name in BATCH_NORMS and (mean := step.ref("running_mean")) is not None:
            found.setdefault(mean, []).append(step.inputs[0])
    return found
