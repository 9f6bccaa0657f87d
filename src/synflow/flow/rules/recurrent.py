"""Recurrent layers, unrolled: the candidate carries flow through time, gates scale it.

A gate multiplies the cell by a number between zero and one that itself depends on the state before. Followed to the
letter, the number of factors of a term would double at each step of time. So a gate stands in as its input over that
input's own value: one where anything reaches it, with flow to its weights, and none back to the state it reads.

All kinds of layers have a memory m and show h of it: m' = keep m + take (W x + reset U h), h' = show m'.

    LSTM   take, keep and show are the input, forget and output gates
    GRU    take and keep are both the update gate, reset is the reset gate, and h = m
    RNN    has no gates and keeps nothing: m' = W x + U h, h = m

`recurrent_scan` computes all steps of time at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..dispatch import Function, Rule, composite, flow_pass, options
from ..tensor import Flow, as_flow, fixed
from .basic import at_one
from .recurrent_scan import NEW, PARTS, by_role, can_scan, scan


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


TABLE: dict[str, Rule] = {
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), composite(recurrent_layer)),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), composite(cell)),
}
