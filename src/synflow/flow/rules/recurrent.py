"""Recurrent layers, unrolled: the candidate carries flow through time, gates scale it.

A gate multiplies the cell by a number between zero and one that itself depends on the state before. Followed to the
letter, the number of factors of a term would double at each step of time. So a gate stands in as its input over that
input's own value: one where anything reaches it, with flow to its weights, and none back to the state it reads.

All kinds of layers have a memory m and show h of it: m' = keep m + take (W x + reset U h), h' = show m'.

    LSTM   take, keep and show are the input, forget and output gates
    GRU    take and keep are both the update gate, reset is the reset gate, and h = m
    RNN    has no gates and keeps nothing: m' = W x + U h, h = m

`step` is one step of time. `scan` computes all steps in as few operations as possible: since gates read the state
without a gradient, the states of all steps are found first, then one product gives what the recurrent weights make of
them, and all gates follow at once. Only the gradient from each candidate to the state before it needs a loop over time.
Each step has an exponent of its own, which never falls: the flow may grow by some powers of two at each step.
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
from ..dispatch import Function, Rule, composite, flow_pass, options
from ..tensor import WINDOW, Flow, as_flow, fixed, peak, saturated, scaled
from .basic import at_one, settled, shift

# The parts of the weights in the order of torch: input, forget, new, output; reset, update, new; new.
PARTS = {"lstm": 4, "gru": 3, "rnn": 1}
# Which of the parts makes the candidate.
NEW = {"lstm": 2, "gru": 2, "rnn": 0}
# If a flow grows by more powers of two over time, float32 loses its first steps beside the last.
FADES = 100


def by_role(kind: str, gates: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """The gates that keep, take, reset and show; None where a layer has no such gate."""
    if kind == "lstm":
        return gates[1], gates[0], None, gates[3]
    return (gates[1], gates[1], gates[0], None) if kind == "gru" else (None, None, None, None)


def _still(x: Any) -> Any:
    """The same flow without a gradient and without degrees."""
    if not isinstance(x, Flow):
        return x
    flow_pass().loose = flow_pass().loose or not options().saturate
    return as_flow(fixed(x), x.exponent)


def step(kind: str, x: Any, h: Any, m: Any, ih: Any, hh: Any, b_ih: Any, b_hh: Any, hr: Any = None) -> tuple[Any, Any]:
    """What is shown, and the memory, after one step of time; an LSTM may project what it shows (`hr`)."""
    inputs, own = F.linear(x, ih, b_ih).chunk(PARTS[kind], -1), F.linear(h, hh, b_hh).chunk(PARTS[kind], -1)
    gates: Sequence[Any] = ()
    if kind != "rnn":
        still = F.linear(_still(h), hh, b_hh).chunk(PARTS[kind], -1)
        gates = [at_one(a + b) for a, b in zip(inputs, still, strict=True)]
    keep, take, reset, show = by_role(kind, gates)
    new, old = inputs[NEW[kind]], own[NEW[kind]]
    new = new + (old if reset is None else reset * old)
    m = new if take is None else keep * m + take * new
    h = m if show is None else show * m
    return (h if hr is None else F.linear(h, hr)), m


def recurrent_layer(
    function: Function, x: Any, states: Any, flat: Any, has_biases: Any, num_layers: Any, dropout: Any = 0.0,
    training: Any = False, bidirectional: Any = False, batch_first: Any = False,
) -> Any:  # fmt: skip
    """`nn.LSTM`, `nn.GRU`, `nn.RNN`: layers, directions and time written out."""
    if isinstance(has_biases, (list, tuple)):  # input, batch sizes, states, weights: the form for packed sequences
        raise TypeError("packed sequences have no rule; give the example as a padded tensor")
    kind = function.__name__.split("_")[0]
    turned = batch_first and x.dim() == 3
    x = x.transpose(0, 1) if turned else x
    directions = 2 if bidirectional else 1
    per = len(flat) // (num_layers * directions)
    hidden, memory = (list(state.unbind(0)) for state in (states if kind == "lstm" else (states, states)))
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            steps = x.flip(0) if direction else x
            given = flat[at * per : (at + 1) * per]
            weights = given if has_biases else (*given[:2], None, None, *given[2:])
            output, hidden[at], memory[at] = _unrolled(kind, steps, hidden[at], memory[at], weights)
            outputs.append(output.flip(0) if direction else output)
        x = torch.cat(outputs, -1)
    x = x.transpose(0, 1) if turned else x
    return (x, torch.stack(hidden), torch.stack(memory)) if kind == "lstm" else (x, torch.stack(hidden))


def _unrolled(kind: str, x: Any, h: Any, m: Any, weights: Sequence[Any]) -> tuple[Any, Any, Any]:
    """What is shown after each step of time, and the last states."""
    if len(weights) == 4 and can_scan(x, h, m, *weights[2:]):
        return scan(kind, x, h, m, *weights)
    collected = []
    for value in x.unbind(0):
        h, m = step(kind, value, h, m, *weights)
        collected.append(h)
    return torch.stack(collected), h, m


def cell(function: Function, x: Any, state: Any, ih: Any, hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """`nn.LSTMCell`, `nn.GRUCell` and `nn.RNNCell`."""
    kind = function.__name__.split("_")[0]
    h, m = state if kind == "lstm" else (state, state)
    h, m = step(kind, x, h, m, ih, hh, b_ih, b_hh)
    return (h, m) if kind == "lstm" else h


def can_scan(x: Any, h: Any, m: Any, *biases: Any) -> bool:
    """Whether `scan` serves; traced passes, pruned biases and constant states go step by step."""
    asked = options()
    if not (asked.divide or asked.saturate) or asked.shared or flow_pass().watched is not None:
        return False
    if not isinstance(x, Flow) or not len(x) or any(isinstance(bias, Flow) for bias in biases):
        return False
    return not any(isinstance(s, Tensor) and not isinstance(s, Flow) and bool(s.any()) for s in (h, m))


def scan(kind: str, x: Flow, h: Any, m: Any, ih: Any, hh: Any, b_ih: Any, b_hh: Any) -> tuple[Any, Any, Any]:
    """What is shown after each step of time, and the last states."""
    _refuse_faded(x)
    inputs, now = F.linear(x, ih, b_ih), flow_pass()
    assert isinstance(inputs, Flow)
    dtype, start = inputs.dtype, max(flow.exponent for flow in (inputs, h, m) if isinstance(flow, Flow))
    if kind != "rnn" and not now.options.saturate:
        now.note_bend()
        now.loose = now.loose or len(x) > 1 or isinstance(h, Flow)
    with DisableTorchFunction():
        # Constant states are zero.
        first = [
            scaled(s.as_subclass(Tensor), s.exponent - start) if isinstance(s, Flow) else s.detach().to(dtype)
            for s in (h, m)
        ]
        bias = None if b_hh is None else shift(b_hh, dtype, 0)
        weight = (fixed(hh) if isinstance(hh, Flow) else hh.detach().abs()).to(dtype)
        states = _found(kind, inputs, first, weight, bias, start)
    end = states.exponents[-1]
    if end - start > FADES and dtype != torch.float64:
        now.faded = max(now.faded, end - start)
    shown, memory = torch.stack(states.shown[1:]), states.memory[-1]
    if torch.is_grad_enabled():
        own: Any = F.linear(as_flow(torch.stack(states.shown[:-1])), hh)  # one layer, whose inputs have no gradient
        with DisableTorchFunction():
            rows = _rows(inputs.as_subclass(Tensor), inputs.exponent, states.exponents[:-1])
            sent = scaled(own.as_subclass(Tensor), own.exponent)
            sent = sent if bias is None else sent + _rows(bias.expand_as(sent), 0, states.exponents[:-1])
            new, old = (tensor.chunk(PARTS[kind], -1)[NEW[kind]] for tensor in (rows, sent))
            gates = () if kind == "rnn" else _gates(rows + sent).chunk(PARTS[kind], -1)
            given = weight.chunk(PARTS[kind])[NEW[kind]], new, old, *first, *by_role(kind, gates)
            shown, memory = _Scan.apply(states, *given)
    last = as_flow(shown[-1], end)
    return settled(_rows(shown, 0, [end - e for e in states.exponents[1:]]), end), last, as_flow(memory, end)


def _refuse_faded(x: Flow) -> None:
    """Refuse a layer on another one whose first steps of time are lost beside its last: scores would be wrong."""
    grown = flow_pass().faded
    if not grown:
        return
    tops = fixed(x).flatten(1).amax(1)
    if bool(tops.min() < tops.max() * 2.0**-FADES):
        raise SynflowError(
            f"the flow through a recurrent layer grows by 2^{grown} over {len(x)} steps of time, more than "
            f"{str(x.dtype).removeprefix('torch.')} holds, and another recurrent layer reads all of them; prune "
            "model.double(), or give a shorter example: masks fit sequences of any length"
        )


@dataclass
class _States:
    """The states before the first step and after each, with their exponents."""

    shown: list[Tensor]
    memory: list[Tensor]
    exponents: list[int]
    saturate: bool

    def cut(self, data: Tensor) -> Tensor:
        """In the booleans one where data is positive."""
        return (data > 0).to(data.dtype) if self.saturate else data


@torch.no_grad()
def _found(kind: str, inputs: Flow, first: list[Tensor], weight: Tensor, bias: Tensor | None, start: int) -> _States:
    """The states of all steps, without gradients; a gate is one where flow arrives."""
    states = _States([first[0].detach()], [first[1].detach()], [start], options().saturate)
    data, weight, parts, new = fixed(inputs), weight.T.contiguous(), PARTS[kind], NEW[kind]
    rows: Sequence[Tensor] = ()
    for step in range(len(data)):
        now = states.exponents[-1]
        if not rows or now != states.exponents[-2]:
            rows = [*data[:step], *(data[step:] * _power(inputs.exponent - now))]
            constant = None if bias is None else bias * _power(-now)
        own = states.shown[-1] @ weight
        own = own if constant is None else own + constant
        x = rows[step] + own
        keep, take, reset, show = by_role(kind, () if kind == "rnn" else (x > 0).to(x.dtype).chunk(parts, -1))
        memory = x.chunk(parts, -1)[new]
        if reset is not None:
            memory = rows[step].chunk(parts, -1)[new] + reset * own.chunk(parts, -1)[new]
        if take is not None:
            memory = keep * states.memory[-1] + take * memory
        memory = states.cut(memory)
        top = peak(memory)
        if not math.isfinite(top):
            raise FloatingPointError(f"the flow became {top} (exponent {now})")
        # If the states have grown, an exponent at which they are near one.
        power = math.frexp(top)[1] if math.frexp(top)[1] > WINDOW else 0
        memory = scaled(memory, -power)
        states.memory.append(memory)
        states.shown.append(memory if show is None else show * memory)
        states.exponents.append(now + power)
    return states


class _Scan(torch.autograd.Function):
    """The states with a gradient; the arguments after the first two are those of the formula above."""

    @staticmethod
    def forward(ctx: Any, states: _States, weight: Tensor, *given: Tensor | None) -> Any:
        ctx.states, ctx.weight = states, weight
        ctx.given = [None if tensor is None else tensor.detach() for tensor in given]
        # A copy: what a function returns refers to it, and so to the states.
        return torch.stack(states.shown[1:]), states.memory[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (new, old, _, _, keep, take, reset, show), states = ctx.given, ctx.states
        into, memory = gradients
        carry, shown, sent = torch.zeros_like(into[0]), [], []

        def gated(gate: Tensor | None, step: Any, data: Tensor) -> Tensor:
            return data if gate is None else gate[step] * data

        for step in reversed(range(len(into))):
            shown.append(into[step] + carry)
            back = gated(show, step, shown[-1])
            back = back if memory is None else memory + back
            sent.append(scaled(back, states.exponents[step] - states.exponents[step + 1]))
            carry = states.cut(gated(reset, step, gated(take, step, sent[-1])) @ ctx.weight)
            memory = None if keep is None else states.cut(keep[step] * sent[-1])
        seen, through, every = torch.stack(shown[::-1]), torch.stack(sent[::-1]), slice(None)
        inner = gated(take, every, through)
        return (
            None, None, inner, gated(reset, every, inner), carry, memory,
            None if keep is None else torch.stack(states.memory[:-1]) * through,
            None if take is None else (new + gated(reset, every, old)) * through,
            None if reset is None else old * inner,
            None if show is None else torch.stack(states.memory[1:]) * seen,
        )  # fmt: skip


def _power(exponent: int) -> float:
    """2**exponent, zero where no type can hold it."""
    return math.ldexp(1.0, exponent) if exponent > -1070 else 0.0


def _rows(data: Tensor, exponent: int, exponents: list[int]) -> Tensor:
    """A tensor over time, brought from one exponent to the exponent of each step."""
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


TABLE: dict[str, Rule] = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), composite(recurrent_layer)),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), composite(cell)),
}
