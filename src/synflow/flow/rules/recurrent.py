"""Recurrent layers, unrolled: the candidate carries flow through time, gates scale it.

A gate multiplies the cell by a number between zero and one that itself depends on the state before. Followed to the
letter, the number of factors of a term would double at each step of time. So a gate stands in as its input over that
input's own value: one where anything reaches it, with flow to its weights, and none back to the state it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..dispatch import Function, Rule, composite, findings, options
from ..tensor import Flow, as_flow, fixed
from .recurrent_scan import PARTS, can_scan, scan

Weights = Sequence[Any]


def _still(x: Any) -> Any:
    """The same flow without a gradient and without degrees."""
    if isinstance(x, Flow):
        findings().loose = findings().loose or not options().saturate
        return as_flow(fixed(x), x.exponent)
    return x


def _gate(x: Any) -> Any:
    """A gate: one where flow arrives, with a gradient to what feeds it."""
    if not isinstance(x, Flow) or options().saturate or not options().divide:
        return x
    return x / x


def _split(weights: Weights, has_biases: bool) -> tuple[Any, Any, Any, Any, Any]:
    """weight_ih, weight_hh, bias_ih, bias_hh, weight_hr from a flat list."""
    weights = [*weights, None]
    if not has_biases:
        return weights[0], weights[1], None, None, weights[2]
    return weights[0], weights[1], weights[2], weights[3], weights[4]


def step(kind: str, x: Any, h: Any, c: Any, weights: Weights, has_biases: bool) -> tuple[Any, Any]:
    """One step of time: c' = f c + i g, h' = o c' (LSTM); n = W x + r (U h), h' = z n + z h (GRU); W x + U h (RNN)."""
    ih, hh, b_ih, b_hh, projection = _split(weights, has_biases)
    inputs, own = F.linear(x, ih, b_ih).chunk(PARTS[kind], -1), F.linear(h, hh, b_hh).chunk(PARTS[kind], -1)
    if kind == "rnn":
        return inputs[0] + own[0], None
    still = F.linear(_still(h), hh, b_hh).chunk(PARTS[kind], -1)
    gates = [_gate(a + b) for a, b in zip(inputs, still, strict=True)]
    if kind == "gru":
        reset, update, _ = gates
        return update * (inputs[2] + reset * own[2]) + update * h, None
    c = gates[1] * c + gates[0] * (inputs[2] + own[2])
    h = gates[3] * c
    return (h if projection is None else F.linear(h, projection)), c


def recurrent_layer(
    function: Function,
    x: Any,
    states: Any,
    flat: Any,
    has_biases: Any,
    num_layers: Any,
    dropout: Any = 0.0,
    training: Any = False,
    bidirectional: Any = False,
    batch_first: Any = False,
) -> Any:
    """`nn.LSTM`, `nn.GRU`, `nn.RNN`: layers, directions and time written out."""
    if isinstance(has_biases, (list, tuple)):  # input, batch sizes, states, weights: the form for packed sequences
        raise TypeError("packed sequences have no rule; give the example as a padded tensor")
    kind = function.__name__.split("_")[0]
    turned = batch_first and x.dim() == 3
    x = x.transpose(0, 1) if turned else x
    directions = 2 if bidirectional else 1
    per = len(flat) // (num_layers * directions)
    hidden = list((states[0] if kind == "lstm" else states).unbind(0))
    cells: list[Any] = list(states[1].unbind(0)) if kind == "lstm" else [None] * len(hidden)
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            steps = x.flip(0) if direction else x
            weights = flat[at * per : (at + 1) * per]
            output, hidden[at], cells[at] = _unrolled(kind, steps, hidden[at], cells[at], weights, has_biases)
            outputs.append(output.flip(0) if direction else output)
        x = torch.cat(outputs, -1)
    x = x.transpose(0, 1) if turned else x
    return (x, torch.stack(hidden), torch.stack(cells)) if kind == "lstm" else (x, torch.stack(hidden))


def _unrolled(kind: str, x: Any, h: Any, c: Any, weights: Weights, has_biases: bool) -> tuple[Any, Any, Any]:
    """The states after each step of time, and the last ones."""
    *parts, projection = _split(weights, has_biases)
    if projection is None and can_scan(x, h, c, *parts[2:]):
        return scan(kind, x, h, c, *parts)
    collected = []
    for value in x.unbind(0):
        h, c = step(kind, value, h, c, weights, has_biases)
        collected.append(h)
    return torch.stack(collected), h, c


def cell(function: Function, x: Any, state: Any, ih: Any, hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """`nn.LSTMCell`, `nn.GRUCell` and `nn.RNNCell`."""
    kind = function.__name__.split("_")[0]
    weights = (ih, hh) if b_ih is None else (ih, hh, b_ih, b_hh)
    h, c = state if kind == "lstm" else (state, None)
    found = step(kind, x, h, c, weights, b_ih is not None)
    return found if kind == "lstm" else found[0]


TABLE: dict[str, Rule] = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), composite(recurrent_layer)),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), composite(cell)),
}
