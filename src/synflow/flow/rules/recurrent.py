"""Recurrent layers, unrolled: the candidate carries flow through time, gates scale it.

A gate multiplies the cell by a number between zero and one that itself depends on the state before. Followed to the
letter, the number of factors of a term would double at each step of time. So a gate stands in as its input over that
input's own value: one where anything reaches it, with flow to its weights, and none back to the state it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..dispatch import Rule, composite, findings, options
from ..tensor import Flow, as_flow, fixed


def _still(x: Any) -> Any:
    """The same flow without a gradient and without degrees."""
    if isinstance(x, Flow):
        findings().loose = True
        return as_flow(fixed(x), x.exponent)
    return x


def _gate(x: Any) -> Any:
    """A gate: one where flow arrives, with a gradient to what feeds it."""
    if not isinstance(x, Flow) or options().saturate or not options().divide:
        return x
    return x / x


Weights = Sequence[Any]


def _split(weights: Weights, has_biases: bool) -> tuple[Any, Any, Any, Any, Any]:
    """weight_ih, weight_hh, bias_ih, bias_hh, weight_hr from a flat list."""
    if has_biases:
        ih, hh, b_ih, b_hh = weights[:4]
        return ih, hh, b_ih, b_hh, weights[4] if len(weights) > 4 else None
    ih, hh = weights[:2]
    return ih, hh, None, None, weights[2] if len(weights) > 2 else None


def lstm_step(x: Any, h: Any, c: Any, weights: Weights, has_biases: bool) -> tuple[Any, Any]:
    """c' = f c + i g, h' = o c'."""
    ih, hh, b_ih, b_hh, projection = _split(weights, has_biases)
    inputs, own, still = F.linear(x, ih, b_ih), F.linear(h, hh, b_hh), F.linear(_still(h), hh, b_hh)
    gates = [a + b for a, b in zip(inputs.chunk(4, -1), still.chunk(4, -1), strict=True)]
    candidate = inputs.chunk(4, -1)[2] + own.chunk(4, -1)[2]
    c = _gate(gates[1]) * c + _gate(gates[0]) * candidate
    h = _gate(gates[3]) * c
    return (h if projection is None else F.linear(h, projection)), c


def gru_step(x: Any, h: Any, weights: Weights, has_biases: bool) -> Any:
    """n = W x + r (U h), h' = z n + z h."""
    ih, hh, b_ih, b_hh, _ = _split(weights, has_biases)
    inputs, own, still = F.linear(x, ih, b_ih), F.linear(h, hh, b_hh), F.linear(_still(h), hh, b_hh)
    reset, update = (_gate(a + b) for a, b in zip(inputs.chunk(3, -1)[:2], still.chunk(3, -1)[:2], strict=True))
    candidate = inputs.chunk(3, -1)[2] + reset * own.chunk(3, -1)[2]
    return update * candidate + update * h


def rnn_step(x: Any, h: Any, weights: Weights, has_biases: bool) -> Any:
    """h' = W x + U h."""
    ih, hh, b_ih, b_hh, _ = _split(weights, has_biases)
    return F.linear(x, ih, b_ih) + F.linear(h, hh, b_hh)


def recurrent_layer(
    function: Callable[..., Any],
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
    kind = function.__name__
    if batch_first and x.dim() == 3:
        x = x.transpose(0, 1)
    directions = 2 if bidirectional else 1
    per = len(flat) // (num_layers * directions)
    hidden = list(states[0].unbind(0)) if kind == "lstm" else list(states.unbind(0))
    cells = list(states[1].unbind(0)) if kind == "lstm" else [None] * len(hidden)
    last_h: list[Any] = []
    last_c: list[Any] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights, h, c = flat[index * per : (index + 1) * per], hidden[index], cells[index]
            steps = list(x.unbind(0))
            collected = []
            for value in reversed(steps) if direction else steps:
                if kind == "lstm":
                    h, c = lstm_step(value, h, c, weights, has_biases)
                elif kind == "gru":
                    h = gru_step(value, h, weights, has_biases)
                else:
                    h = rnn_step(value, h, weights, has_biases)
                collected.append(h)
            outputs.append(torch.stack(collected[::-1] if direction else collected))
            last_h.append(h)
            last_c.append(c)
        x = torch.cat(outputs, -1)
    output = x.transpose(0, 1) if batch_first and x.dim() == 3 else x
    if kind == "lstm":
        return output, torch.stack(last_h), torch.stack(last_c)
    return output, torch.stack(last_h)


def lstm_cell(
    function: Callable[..., Any], x: Any, state: Any, ih: Any, hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """`nn.LSTMCell`."""
    weights = (ih, hh) if b_ih is None else (ih, hh, b_ih, b_hh)
    return lstm_step(x, state[0], state[1], weights, b_ih is not None)


def simple_cell(
    function: Callable[..., Any], x: Any, h: Any, ih: Any, hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """`nn.GRUCell` and `nn.RNNCell`."""
    weights = (ih, hh) if b_ih is None else (ih, hh, b_ih, b_hh)
    step = gru_step if function.__name__ == "gru_cell" else rnn_step
    return step(x, h, weights, b_ih is not None)


TABLE: dict[str, Rule] = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), composite(recurrent_layer)),
    "lstm_cell": composite(lstm_cell),
    **dict.fromkeys(("gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), composite(simple_cell)),
}
