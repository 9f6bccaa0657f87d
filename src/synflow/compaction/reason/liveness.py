"""What is zero, and what has no gradient, where some weights are zero: told operation by operation.

Two planes per tensor: `alive`, an element may be nonzero, and `felt`, its gradient may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..record.aten_names import ALONG, BATCH_NORMS, BINARY, FLAT, MOVES, ODD, OTHER_UNARY, POOLS, REDUCED_ONCE, SAME
from ..record.tape import Ref, Step, Tape
from .contractions import Contraction, contraction, product
from .movement import move, move_back, reduce_to

__all__ = ["State", "batch_norm_parts", "channels", "look", "reduced"]


@dataclass
class State:
    """The planes of every tensor on a tape, as far as they have been told."""

    tape: Tape
    alive: dict[int, Tensor]
    felt: dict[int, Tensor]
    contractions: dict[int, Contraction]

    def value(self, number: int | None) -> Tensor:
        """May be nonzero? Yes for whatever no rule has said anything about."""
        if number is None:
            return torch.zeros((), dtype=torch.bool)
        if number not in self.alive:
            self.alive[number] = torch.ones([1] * len(self.tape.shapes[number]), dtype=torch.bool)
        return self.alive[number]

    def gradient(self, number: int) -> Tensor:
        """May its gradient be nonzero? Not until a rule says so."""
        if number not in self.felt:
            self.felt[number] = torch.zeros([1] * len(self.tape.shapes[number]), dtype=torch.bool)
        return self.felt[number]

    def feel(self, number: int | None, plane: Tensor) -> None:
        if number is not None:
            self.felt[number] = self.gradient(number) | reduce_to(plane, self.tape.shapes[number])

    def feel_all(self, step: Step) -> None:
        if any(bool(self.gradient(out).any()) for out in step.outputs):
            for number in step.inputs:
                self.feel(number, torch.ones([1] * len(self.tape.shapes[number]), dtype=torch.bool))


def look(tape: Tape, alive: Mapping[int, Tensor], back: bool = True) -> State:
    """What may be nonzero where these leaves are only in these places, and, looking back, what has a gradient."""
    contractions = {i: c for i, step in enumerate(tape.steps) if (c := contraction(step, tape)) is not None}
    state = State(tape, dict(alive), {}, contractions)
    for place, step in enumerate(tape.steps):
        try:
            _forward(state, place, step)
        except Exception:  # nothing is known about what it made
            for out in step.outputs:
                state.alive.pop(out, None)
    if not back:
        return state
    for number in tape.outputs:
        state.feel(number, torch.ones([1] * len(tape.shapes[number]), dtype=torch.bool))
    for place in reversed(range(len(tape.steps))):
        try:
            _backward(state, place, tape.steps[place])
        except Exception:
            state.feel_all(tape.steps[place])
    return state


def batch_norm_parts(step: Step) -> list[int]:
    """What a batch norm reads per channel: gain, shift, running mean and variance, as far as it has them."""
    names = ("weight", "bias", "running_mean", "running_var")
    return [number for name in names if (number := step.ref(name)) is not None]


def channels(plane: Tensor) -> Tensor:
    """What holds for any element of a channel (the second dimension)."""
    return plane.transpose(0, 1).reshape(plane.shape[1], -1).any(1)


def _per_channel(plane: Tensor, rank: int) -> Tensor:
    """A channel's plane beside an activation."""
    return plane.reshape(1, -1, *[1] * (rank - 2)) if plane.dim() else plane


def _scalar(value: object) -> bool:
    """May this argument be nonzero, where it stands for a number?"""
    return isinstance(value, Ref) or value != 0


def _forward(state: State, place: int, step: Step) -> None:
    tape, name, outputs = state.tape, step.name, step.outputs
    if (c := state.contractions.get(place)) is not None:
        alive = c.show_out(product(c.see_x(state.value(c.x)), c.see_y(state.value(c.y))))
        if c.bias is not None:
            bias = state.value(c.bias)
            alive = alive | (_per_channel(bias, alive.dim()) if c.groups else bias)
        state.alive[outputs[0]] = alive
    elif name in MOVES:
        moved = step.inputs if name in ("cat", "stack") else step.inputs[:1]
        for out, plane in zip(outputs, move(step, tape, [state.value(n) for n in moved]), strict=True):
            state.alive[out] = plane
    elif name in BATCH_NORMS:
        x = state.value(step.inputs[0])
        mean = _per_channel(state.value(step.ref("running_mean")), x.dim())
        gain = step.ref("weight")
        varied = _per_channel(channels(x), x.dim()) | mean
        if gain is not None:
            varied = varied & _per_channel(state.value(gain), x.dim())
        state.alive[outputs[0]] = varied | _per_channel(state.value(step.ref("bias")), x.dim())
    elif name in FLAT | ODD | SAME:
        for out in outputs[:1]:
            state.alive[out] = state.value(step.inputs[0])
    elif name in ("zeros", "new_zeros", "zeros_like"):
        state.alive[outputs[0]] = torch.zeros([1] * len(tape.shapes[outputs[0]]), dtype=torch.bool)
    elif name in BINARY:
        plane = _binary_forward(state, step)
        state.alive[outputs[0]] = plane
    elif name in POOLS:
        x = state.value(step.inputs[0])
        for dim in range(2, x.dim()):
            x = x.any(dim, keepdim=True)
        state.alive[outputs[0]] = x
    elif name in REDUCED_ONCE:
        state.alive[outputs[0]] = _reduce(step, state.value(step.inputs[0]))
    elif name == "embedding":
        columns = state.value(step.ref("weight")).any(0)
        state.alive[outputs[0]] = columns.reshape([1] * (len(tape.shapes[outputs[0]]) - 1) + [-1])
    # whatever else: may be nonzero


def _backward(state: State, place: int, step: Step) -> None:
    tape, name = state.tape, step.name
    if not any(bool(state.gradient(out).any()) for out in step.outputs):
        return
    felt = state.gradient(step.outputs[0])
    if (c := state.contractions.get(place)) is not None:
        x, y, out = c.see_x(state.value(c.x)), c.see_y(state.value(c.y)), c.see_out(felt)
        state.feel(c.x, c.show_x(product(out, y.transpose(1, 2))))
        state.feel(c.y, c.show_y(product(x.transpose(1, 2), out)))
        if c.bias is not None:
            state.feel(c.bias, channels(c.show_out(out)) if c.groups else felt)
    elif name in MOVES:
        moved = step.inputs if name in ("cat", "stack") else step.inputs[:1]
        for number, plane in zip(moved, move_back(step, tape, [state.gradient(o) for o in step.outputs]), strict=False):
            state.feel(number, plane)
    elif name in BATCH_NORMS:
        touched = channels(felt.expand(-1, tape.shapes[step.inputs[0]][1], *[-1] * (felt.dim() - 2)))
        x, mean = channels(state.value(step.inputs[0])), state.value(step.ref("running_mean"))
        gain = step.ref("weight")
        passed = touched & state.value(gain) if gain is not None else touched
        state.feel(step.inputs[0], _per_channel(passed, felt.dim()))
        state.feel(gain, touched & (x | mean))
        state.feel(step.ref("bias"), touched)
    elif name in FLAT:
        state.feel(step.inputs[0], felt & state.value(step.inputs[0]))
    elif name in ODD | SAME:
        state.feel(step.inputs[0], felt)
        for number in step.inputs[1:]:  # a slope that is learnt: its gradient is a multiple of the input
            state.feel(number, _slope(felt & state.value(step.inputs[0]), tape.shapes[number]))
    elif name in BINARY:
        _binary_backward(state, step, felt)
    elif name in POOLS:
        for dim in range(2, felt.dim()):
            felt = felt.any(dim, keepdim=True)
        state.feel(step.inputs[0], felt)
    elif name in OTHER_UNARY:
        state.feel(step.inputs[0], felt)
    elif name in ALONG:
        state.feel(step.inputs[0], felt.any(step.args["dim"], keepdim=True))
    elif name in REDUCED_ONCE:
        state.feel(step.inputs[0], _unreduce(step, felt, len(tape.shapes[step.inputs[0]])))
    elif name == "embedding":
        columns = felt.reshape(-1, felt.shape[-1]).any(0)
        state.feel(step.ref("weight"), columns.reshape(1, -1))
    else:
        state.feel_all(step)


def _binary_forward(state: State, step: Step) -> Tensor:
    tape, name, args = state.tape, step.name, step.args
    planes = [state.value(n) for n in step.inputs]
    rank = len(tape.shapes[step.outputs[0]])
    sure = torch.ones([1] * rank, dtype=torch.bool)
    if name in ("add", "sub") and len(planes) == 2:
        return (planes[0] | planes[1]) & sure
    if name in ("add", "sub"):
        return sure if _scalar(args["other"]) else planes[0]
    if name == "mul" and len(planes) == 2:
        return planes[0] & planes[1] & sure
    if name in ("mul", "div", "true_divide"):
        return planes[0] & sure
    if name == "pow" and isinstance(args.get("exponent"), int | float) and args["exponent"] >= 1:
        return planes[0]
    if name == "hardtanh" and args["min_val"] <= 0 <= args["max_val"]:
        return planes[0]
    if name == "masked_fill" and len(planes) == 2 and args.get("value") == 0:
        return planes[0] & sure
    if name == "addcmul" and len(planes) == 3:
        return (planes[0] | (planes[1] & planes[2])) & sure
    return sure


def _binary_backward(state: State, step: Step, felt: Tensor) -> None:
    name, inputs = step.name, step.inputs
    if name == "mul" and len(inputs) == 2:
        state.feel(inputs[0], felt & state.value(inputs[1]))
        state.feel(inputs[1], felt & state.value(inputs[0]))
    elif name == "div" and len(inputs) == 2:
        state.feel(inputs[0], felt)
        state.feel(inputs[1], felt & state.value(inputs[0]))
    elif _flat_at_zero(step):
        state.feel(inputs[0], felt & state.value(inputs[0]))
    elif name == "addcmul" and len(inputs) == 3:
        state.feel(inputs[0], felt)
        state.feel(inputs[1], felt & state.value(inputs[2]))
        state.feel(inputs[2], felt & state.value(inputs[1]))
    else:
        for number in inputs:
            state.feel(number, felt)


def _flat_at_zero(step: Step) -> bool:
    if step.name == "hardtanh":  # at a bound the slope is zero
        return 0 in (step.args["min_val"], step.args["max_val"])
    exponent = step.args.get("exponent")
    return step.name == "pow" and isinstance(exponent, int | float) and exponent > 1


def reduced(step: Step, rank: int) -> list[int]:
    """The dimensions that a reduction runs over."""
    dims = step.args.get("dim")
    dims = [dims] if isinstance(dims, int) else list(dims or range(rank))
    return sorted(d % rank for d in dims) if rank else []


def _reduce(step: Step, plane: Tensor) -> Tensor:
    for dim in reversed(reduced(step, plane.dim())):
        plane = plane.any(dim, keepdim=bool(step.args.get("keepdim")))
    return plane


def _unreduce(step: Step, plane: Tensor, rank: int) -> Tensor:
    if not step.args.get("keepdim"):
        for dim in reduced(step, rank):
            plane = plane.unsqueeze(dim)
    return plane


def _slope(plane: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of PReLU's slopes, which lie along the channels or are one for all."""
    if shape and shape[0] > 1 and plane.dim() > 1 and len(shape) == 1:
        return channels(plane)
    return plane.any().reshape([1] * len(shape)) if len(shape) != plane.dim() else plane
