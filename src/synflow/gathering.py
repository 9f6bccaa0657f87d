"""Picking pixels of images by place, adding them back, and products with very few columns.

torch has each of these in several passes only, or slowly for matrices of these shapes. They are operations of their own
(torch.library), so that a recording sees each as one; compiled where that is loaded, else made of torch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import compiled

# Products with so many columns are faster by compiled loops; with one, torch's are as fast.
COLUMNS = range(2, 5)

_LIBRARY = torch.library.Library("synflow", "FRAGMENT")
_LIBRARY.define("pick(Tensor images, Tensor places) -> Tensor")
_LIBRARY.define("add_back(Tensor parts, Tensor places, int size) -> Tensor")
_LIBRARY.define("through(Tensor weight, Tensor seen) -> Tensor")
_LIBRARY.define("back(Tensor weight, Tensor sent) -> Tensor")


def picked(images: Tensor, places: Tensor) -> Tensor:
    """Pixels of flat images (any, channels, pixels) by place; the place after the last is a zero.

    >>> picked(torch.tensor([[[5.0, 6.0, 7.0]]]), torch.tensor([2, 2, 3, 0]))
    tensor([[[7., 7., 0., 5.]]])
    """
    found: Tensor = _Picked.apply(images, places)
    return found


def pick(images: Tensor, places: Tensor) -> Tensor:
    """The same, not to be differentiated."""
    found: Tensor = torch.ops.synflow.pick(images, places)
    return found


def add_back(parts: Tensor, places: Tensor, size: int) -> Tensor:
    """The sums of what belongs to each pixel: the gradient of `picked`.

    >>> add_back(torch.tensor([[[1.0, 2.0, 4.0, 8.0]]]), torch.tensor([2, 2, 3, 0]), 3)
    tensor([[[8., 0., 3.]]])
    """
    found: Tensor = torch.ops.synflow.add_back(parts, places, size)
    return found


def through(weight: Tensor, seen: Tensor) -> Tensor:
    """`weight @ seen` with so few columns that compiled loops are faster."""
    found: Tensor = torch.ops.synflow.through(weight, seen)
    return found


def back(weight: Tensor, sent: Tensor) -> Tensor:
    """`weight.T @ sent`, the same."""
    found: Tensor = torch.ops.synflow.back(weight, sent)
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
    loops = _loops(images)
    if loops is None:
        return F.pad(images, (0, 1)).index_select(2, places)
    found = images.new_empty(*images.shape[:2], len(places))
    loops.pick_places(_lines(images), places.numpy(), found.view(-1, len(places)).numpy())
    return found


def _add_back(parts: Tensor, places: Tensor, size: int) -> Tensor:
    loops = _loops(parts)
    if loops is None:
        return parts.new_zeros(*parts.shape[:2], size + 1).index_add_(2, places, parts)[..., :size].contiguous()
    found = parts.new_empty(*parts.shape[:2], size)
    loops.add_places(_lines(parts), places.numpy(), found.view(-1, size).numpy())
    return found


def _through(weight: Tensor, seen: Tensor) -> Tensor:
    loops = _loops(weight)
    if loops is None or seen.shape[1] not in COLUMNS:
        return weight @ seen
    columns = np.zeros((4, len(seen)), seen.numpy().dtype)
    columns[: seen.shape[1]] = seen.t().numpy()
    found = weight.new_empty(len(weight), seen.shape[1])
    loops.few_through(weight.contiguous().numpy(), columns, found.numpy())
    return found


def _back(weight: Tensor, sent: Tensor) -> Tensor:
    loops = _loops(weight)
    if loops is None or sent.shape[1] not in COLUMNS:
        return weight.t() @ sent
    found = weight.new_empty(weight.shape[1], sent.shape[1])
    loops.few_back(weight.contiguous().numpy(), F.pad(sent, (0, 4 - sent.shape[1])).contiguous().numpy(), found.numpy())
    return found


for _function in (_pick, _add_back, _through, _back):
    _LIBRARY.impl(_function.__name__[1:], _function, "CompositeExplicitAutograd")

# What these operations come down to, for whoever need not ask torch which of them is meant.
DIRECT: dict[Any, Callable[..., Tensor]] = {
    torch.ops.synflow.pick.default: _pick,
    torch.ops.synflow.add_back.default: _add_back,
    torch.ops.synflow.through.default: _through,
    torch.ops.synflow.back.default: _back,
}


def _loops(tensor: Tensor) -> Any:
    serve = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
    return compiled.already() if serve else None


def _lines(images: Tensor) -> np.ndarray:
    lines: np.ndarray = images.reshape(-1, images.shape[2]).contiguous().numpy()
    return lines
