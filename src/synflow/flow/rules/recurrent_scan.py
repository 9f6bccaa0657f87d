"""All steps of time of a recurrent layer in as few operations as possible; the stand-in is that of `recurrent.step`.

Gates read the state without a gradient. So the states of all steps are found first, without gradients. Then one
product gives what the recurrent weights make of them, and all gates follow at once. Left for a loop over time is the
gradient that goes from each candidate back to the state before it. Each step has an exponent of its own, which never
falls: the flow may grow by some powers of two at each step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import SynflowError
from ...support.private_torch import DisableTorchFunction
from ..dispatch import active_mode, findings, options
from ..tensor import WINDOW, Flow, as_flow, fixed, peak, saturated, scaled
from .basic import settled, shift

# The parts of the weights in the order of torch: input, forget, new, output; reset, update, new; new.
PARTS = {"lstm": 4, "gru": 3, "rnn": 1}
# Which of the parts makes the candidate.
NEW = {"lstm": 2, "gru": 2, "rnn": 0}


# A flow that grows by so many powers of two over time leaves nothing of its first steps beside the last in float32.
FADES = 100


def can_scan(x: Any, h: Any, c: Any, *biases: Any) -> bool:
    """Whether a layer is of the usual kind; others (traced passes, pruned biases, constant states) go step by step."""
    asked, now = options(), active_mode().flow_pass
    if not (asked.divide or asked.saturate) or asked.shared or now.watched is not None or not isinstance(x, Flow):
        return False
    if any(isinstance(bias, Flow) for bias in biases) or not len(x):
        return False
    return not any(isinstance(s, Tensor) and not isinstance(s, Flow) and bool(s.any()) for s in (h, c))


def scan(kind: str, x: Flow, h: Any, c: Any, ih: Any, hh: Any, b_ih: Any, b_hh: Any) -> tuple[Any, Any, Any]:
    """The states after each step of time, and the last ones."""
    _refuse_faded(x)
    inputs: Any = F.linear(x, ih, b_ih)
    if kind != "rnn" and not options().saturate:
        findings().note_bend()
        findings().loose = findings().loose or len(x) > 1 or isinstance(h, Flow)
    start = max([inputs.exponent, *(state.exponent for state in (h, c) if isinstance(state, Flow))])
    with DisableTorchFunction():
        first = [_at(state, start, inputs.dtype) for state in (h, c) if state is not None]
        bias = None if b_hh is None else shift(b_hh, inputs.dtype, 0)
        states = _found(kind, inputs, first, _absolute(hh, inputs.dtype), bias, start)
    grown = states.exponents[-1] - start
    if grown > FADES and inputs.dtype != torch.float64:
        findings().faded = max(findings().faded, grown)
    if not torch.is_grad_enabled():
        return _results(states, torch.stack(states.hidden[1:]), states.cells[-1:])
    own: Any = F.linear(as_flow(torch.stack(states.hidden[:-1])), hh)  # one layer, whose inputs have no gradient
    with DisableTorchFunction():
        rows = _rows(inputs.as_subclass(Tensor), inputs.exponent, states.exponents[:-1])
        sent = scaled(own.as_subclass(Tensor), own.exponent)
        sent = sent if bias is None else sent + _rows(bias.expand_as(sent), 0, states.exponents[:-1])
        gates = () if kind == "rnn" else _gates(rows + sent).chunk(PARTS[kind], -1)
        new, old = (tensor.chunk(PARTS[kind], -1)[NEW[kind]] for tensor in (rows, sent))
        weight = _absolute(hh, rows.dtype).chunk(PARTS[kind])[NEW[kind]]
        output, *cell = _Scan.apply(kind, states, weight, new, old, *first, *gates)
        return _results(states, output, cell)


def _refuse_faded(x: Flow) -> None:
    """A layer on another one, whose first steps of time are lost beside its last: its scores would be wrong."""
    grown = findings().faded
    if not grown:
        return
    tops = fixed(x).detach().flatten(1).amax(1)
    if bool(tops.min() < tops.max() * 2.0**-FADES):
        raise SynflowError(
            f"the flow through a recurrent layer grows by 2^{grown} over {len(x)} steps of time, more than "
            f"{str(x.dtype).removeprefix('torch.')} holds, and another recurrent layer reads all of them; prune "
            "model.double(), or give a shorter example: masks fit sequences of any length"
        )


@dataclass
class _States:
    """The states before the first step and after each, with their exponents; cells are those of an LSTM."""

    hidden: list[Tensor]
    cells: list[Tensor]
    exponents: list[int]
    saturate: bool

    def power(self, step: int) -> float:
        """The factor that states were scaled with after a step."""
        return _power(self.exponents[step] - self.exponents[step + 1])

    def cut(self, data: Tensor) -> Tensor:
        """In the booleans one where data is positive."""
        return (data > 0).to(data.dtype) if self.saturate else data


@torch.no_grad()
def _found(kind: str, inputs: Flow, first: list[Tensor], weight: Tensor, bias: Tensor | None, start: int) -> _States:
    """The states of all steps, without gradients; a gate is one where flow arrives."""
    states = _States([first[0].detach()], [state.detach() for state in first[1:]], [start], options().saturate)
    data, weight = fixed(inputs), weight.T.contiguous()
    rows: Sequence[Tensor] = ()
    for step in range(len(data)):
        now, h = states.exponents[-1], states.hidden[-1]
        if not rows or now != states.exponents[-2]:
            rows = [*data[:step], *(data[step:] * _power(inputs.exponent - now))]
            constant = None if bias is None else bias * _power(-now)
        own = h @ weight if constant is None else h @ weight + constant
        x = rows[step] + own
        if kind == "rnn":
            h = x
        else:
            gates, new = (x > 0).to(x.dtype).chunk(PARTS[kind], -1), x.chunk(PARTS[kind], -1)[2]
        if kind == "gru":
            old, inner = own.chunk(3, -1)[2], rows[step].chunk(3, -1)[2]
            h = gates[1] * (inner + gates[0] * old + h)
        if kind == "lstm":
            states.cells.append(states.cut(gates[1] * states.cells[-1] + gates[0] * new))
            h = gates[3] * states.cells[-1]
        states.hidden.append(states.cut(h))
        _rescale(states, now)
    return states


def _rescale(states: _States, now: int) -> None:
    """Give the last states an exponent at which they are near one, if they have grown."""
    last = [states.hidden, states.cells] if states.cells else [states.hidden]
    top = peak(last[-1][-1])
    if not math.isfinite(top):
        raise FloatingPointError(f"the flow became {top} (exponent {now})")
    power = math.frexp(top)[1]
    states.exponents.append(now + power if power > WINDOW else now)
    if power > WINDOW:
        for items in last:
            items[-1] = scaled(items[-1], -power)


class _Scan(torch.autograd.Function):
    """States with a gradient: h' = g (LSTM: o c', c' = f c + i g; GRU: z (n + r u + h)), g = n + u, u = U h."""

    @staticmethod
    def forward(ctx: Any, kind: str, states: _States, weight: Tensor, *given: Tensor) -> Any:
        ctx.kind, ctx.states, ctx.weight = kind, states, weight
        ctx.given = [tensor.detach() for tensor in given]
        return torch.stack(states.hidden[1:]), *states.cells[-1:]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        back = {"lstm": _back_lstm, "gru": _back_gru, "rnn": _back_rnn}[ctx.kind]
        return None, None, None, *back(ctx.states, ctx.weight, *gradients, *ctx.given)


def _back_rnn(states: _States, weight: Tensor, into: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    carry, found = torch.zeros_like(into[0]), []
    for step in reversed(range(len(into))):
        found.append((into[step] + carry) * states.power(step))
        carry = states.cut(found[-1] @ weight)
    new = torch.stack(found[::-1])
    return new, new, carry


def _back_gru(
    states: _States, weight: Tensor, into: Tensor, new: Tensor, old: Tensor, _: Tensor, *gates: Tensor
) -> tuple[Any, ...]:
    reset, update = gates[:2]
    carry, found = torch.zeros_like(into[0]), []
    for step in reversed(range(len(into))):
        found.append((into[step] + carry) * states.power(step))
        inner = update[step] * found[-1]
        carry = states.cut(inner + (reset[step] * inner) @ weight)
    sent = torch.stack(found[::-1])
    inner = update * sent
    whole = new + reset * old + torch.stack(states.hidden[:-1])
    return inner, reset * inner, carry, old * inner, whole * sent, None


def _back_lstm(
    states: _States, weight: Tensor, into: Tensor, last: Tensor, new: Tensor, old: Tensor, *given: Tensor
) -> tuple[Any, ...]:
    _, _, take, keep, _, show = given
    carry, cell, found, shown = torch.zeros_like(into[0]), last, [], []
    for step in reversed(range(len(into))):
        shown.append(into[step] + carry)
        found.append(torch.addcmul(cell, show[step], shown[-1]) * states.power(step))
        carry = states.cut((take[step] * found[-1]) @ weight)
        cell = states.cut(keep[step] * found[-1])
    sent, seen = torch.stack(found[::-1]), torch.stack(shown[::-1])
    before, after = torch.stack(states.cells[:-1]), torch.stack(states.cells[1:])
    candidate = take * sent
    return candidate, candidate, carry, cell, (new + old) * sent, before * sent, None, after * seen


def _results(states: _States, output: Tensor, cell: Sequence[Tensor]) -> tuple[Any, Any, Any]:
    """All hidden states, and the last ones, at the exponent of the last."""
    end = states.exponents[-1]
    last = as_flow(output[-1], end)
    whole = settled(_rows(output, 0, [end - exponent for exponent in states.exponents[1:]]), end)
    return whole, last, as_flow(cell[0].clone(), end) if cell else None


def _at(state: Tensor, exponent: int, dtype: torch.dtype) -> Tensor:
    """A state at an exponent; a constant one is zero."""
    if isinstance(state, Flow):
        return scaled(state.as_subclass(Tensor), state.exponent - exponent)
    return state.detach().to(dtype)


def _absolute(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return (fixed(weight) if isinstance(weight, Flow) else weight.detach().abs()).to(dtype)


def _power(exponent: int) -> float:
    """2**exponent, zero where no type can hold it."""
    return math.ldexp(1.0, exponent) if exponent > -1070 else 0.0


def _rows(data: Tensor, exponent: int, exponents: list[int]) -> Tensor:
    """A tensor over time, brought from one exponent to another one for each step."""
    powers = [_power(exponent - other) for other in exponents]
    if all(power == 1 for power in powers):
        return data
    return data * data.new_tensor(powers).reshape([-1] + [1] * (data.dim() - 1))


def _gates(x: Tensor) -> Tensor:
    """The gates of all steps: one where flow arrives, with a gradient to what feeds them."""
    if options().saturate:
        return saturated(x)
    data = x.detach()
    inverse = data.clamp_min(torch.finfo(data.dtype).tiny).reciprocal()
    return x * torch.where(data > 0, inverse, torch.zeros_like(data))
