"""Linear layers with a large constant weight, such as outputs tied to an embedding: |W| is made a part at a time.

Each product is one operation of its own, so that a recorded measurement holds W and not its absolute values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# A constant weight of at least this many numbers (16 MB in float32) is made positive in parts of a quarter of that, to
# save memory; a smaller one is made positive as a whole.
LARGE = 1 << 22

_LIBRARY = torch.library.Library("synflow", "DEF")


def _product(x: Tensor, weight: Tensor) -> Tensor:
    result = x.new_empty(*x.shape[:-1], len(weight))
    for start, part in _parts(weight):
        result[..., start : start + len(part)] = F.linear(x, part)
    return result


def _back(gradient: Tensor, weight: Tensor) -> Tensor:
    into = gradient.new_zeros(*gradient.shape[:-1], weight.shape[1])
    for start, part in _parts(weight):
        into += gradient[..., start : start + len(part)] @ part
    return into


def _parts(weight: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The first row and the absolute values of some rows at a time, all in the same memory."""
    step = max(1, LARGE // 4 // weight.shape[1])
    memory = torch.empty_like(weight[:step])
    for start in range(0, len(weight), step):
        part = weight[start : start + step]
        yield start, torch.abs(part, out=memory[: len(part)])


for _name, _function in (("positive_linear", _product), ("positive_linear_back", _back)):
    _LIBRARY.define(f"{_name}(Tensor x, Tensor weight) -> Tensor")
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")


def positive_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x |W|^T for a constant W."""
    result: Tensor = _Positive.apply(x, weight.detach())
    return result


class _Positive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
        ctx.weight = weight
        return torch.ops.synflow.positive_linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.ops.synflow.positive_linear_back(gradients[0], ctx.weight), None
