"""Picking pixels of images by place, and adding them back: in one compiled pass where that is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .compiled import loops_for
from .custom_ops import operation


def picked(images: Tensor, places: Tensor) -> Tensor:
    """Pixels of flat images (any, channels, pixels) by place; the place after the last is a zero.

    >>> picked(torch.tensor([[[5.0, 6.0, 7.0]]]), torch.tensor([2, 2, 3, 0]))
    tensor([[[7., 7., 0., 5.]]])
    """
    found: Tensor = _Picked.apply(images, places)
    return found


class _Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = images.shape[2]
        return pick(images, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return add_back(gradients[0], places, ctx.size), None


def _pick(images: Tensor, places: Tensor) -> Tensor:
    loops = loops_for(images)
    if loops is None:
        return F.pad(images, (0, 1)).index_select(2, places)
    found = images.new_empty(*images.shape[:2], len(places))
    loops.pick_places(_lines(images), places.numpy(), found.view(-1, len(places)).numpy())
    return found


def _add_back(parts: Tensor, places: Tensor, size: int) -> Tensor:
    loops = loops_for(parts)
    if loops is None:
        return parts.new_zeros(*parts.shape[:2], size + 1).index_add_(2, places, parts)[..., :size].contiguous()
    found = parts.new_empty(*parts.shape[:2], size)
    loops.add_places(_lines(parts), places.numpy(), found.view(-1, size).numpy())
    return found


def _lines(images: Tensor) -> np.ndarray:
    lines: np.ndarray = images.reshape(-1, images.shape[2]).contiguous().numpy()
    return lines


# `picked`, not to be differentiated, and the sums of what belongs to each pixel, which are its gradient.
pick = operation("pick(Tensor images, Tensor places) -> Tensor", _pick)
add_back = operation("add_back(Tensor parts, Tensor places, int size) -> Tensor", _add_back)
