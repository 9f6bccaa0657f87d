"""The way back: a compact network's weights in the dense shape."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from ..errors import SynflowError
from ..masks.attach import bake
from .cut.surgery import paste, tensors
from .result import compaction_of

__all__ = ["expand"]

Model = TypeVar("Model", bound=nn.Module)


def expand(small: nn.Module, dense_model: Model) -> Model:
    """A copy of the dense model with the compact network's weights and statistics, removed weights at zero.

    It has the compact network's outputs, under the dense names and shapes. Attach the dense masks to train on there.

    >>> from synflow.compaction import compact
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> small = compact(model, torch.ones(1, 3), {"2.weight": torch.tensor([[True, False, False, True]] * 2)})
    >>> x = torch.randn(5, 3)
    >>> torch.allclose(expand(small, model)(x), small(x))
    True
    """
    compaction = compaction_of(small)
    dense = copy.deepcopy(dense_model)
    bake(dense)
    plain = copy.deepcopy(small)
    bake(plain)
    parts, wholes = tensors(plain), tensors(dense)
    if set(parts) != set(wholes):
        odd = sorted(set(parts) ^ set(wholes))
        raise SynflowError(
            f"expand: the dense model is not the one that was compacted, {odd[0]} is in only one of them"
        )
    with torch.no_grad():
        for name, whole in wholes.items():
            kept, part = compaction.kept.get(name, {}), parts[name]
            expected = compaction.shapes.get(name, tuple(part.shape))
            if tuple(whole.shape) != tuple(expected):
                raise SynflowError(
                    f"expand: {name} has shape {tuple(whole.shape)} in the dense model, expected {tuple(expected)}"
                )
            ground = torch.zeros_like(whole) if isinstance(whole, nn.Parameter) else whole
            whole.copy_(paste(part, ground, kept) if kept else part)
    dense.train(small.training)
    return dense
