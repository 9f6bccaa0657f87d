"""What the built-in networks have in common: how an image is looked at, how parts are named, how wide layers are."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from ..errors import SynflowError

Shape = tuple[int, ...]


def sequence(**parts: nn.Module) -> nn.Sequential:
    """Parts in the order of their names."""
    return nn.Sequential(OrderedDict(parts))


def image(input_shape: Shape, side: int) -> tuple[int, int]:
    """Channels and shorter side of an image at least `side` pixels wide and high."""
    if len(input_shape) != 3 or min(input_shape[1:]) < side:
        raise SynflowError(
            f"input_shape {input_shape} does not fit this network; "
            f"give (channels, height, width) with at least {side} x {side} pixels"
        )
    return input_shape[0], min(input_shape[1:])


def scaled(channels: int, width: float) -> int:
    """Channels of a network `width` times as wide."""
    return max(1, round(channels * width))
