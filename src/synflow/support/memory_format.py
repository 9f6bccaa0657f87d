"""Images with their channels innermost in memory, which most convolutions on processors like best."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .private_torch import pytree

Model = TypeVar("Model", bound=nn.Module)


def channels_last(model: Model) -> Model:
    """Lay the weights of a model out so, in place."""
    module: Any = model  # torch's types know this argument only beside others
    module.to(memory_format=torch.channels_last)
    return model


def images_channels_last(inputs: Any) -> Any:
    """Nested inputs in which every image is laid out so."""

    def fit(leaf: Any) -> Any:
        images = isinstance(leaf, Tensor) and leaf.dim() == 4
        return leaf.contiguous(memory_format=torch.channels_last) if images else leaf

    return pytree.tree_map(fit, inputs)
