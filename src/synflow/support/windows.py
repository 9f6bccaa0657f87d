"""Where the windows of a convolution stand, and what each weight of a kernel sees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor


def count(length: int, width: int, stride: int, padding: int, dilation: int) -> int:
    """The number of windows along one dimension.

    >>> count(6, 3, 1, 1, 1), count(6, 3, 2, 0, 2)
    (6, 1)
    """
    return (length + 2 * padding - dilation * (width - 1) - 1) // stride + 1


def sizes(x: Sequence[int], weight: Sequence[int], how: Any) -> list[int]:
    """The number of positions of a convolution in each dimension; `how` begins with stride, padding, dilation."""
    return [count(*along) for along in zip(x[2:], weight[2:], *how[:3], strict=True)]


@lru_cache(maxsize=256)
def places(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:  # fmt: skip
    """Which pixel each weight of a kernel sees at each position, kernel first; the one after the last is a zero.

    >>> places((1, 3), (1, 2), (1, 1), (0, 1), (1, 1))
    tensor([3, 0, 1, 2, 0, 1, 2, 3], dtype=torch.int32)
    """
    lines = []
    for length, width, *how in zip(size, kernel, stride, padding, dilation, strict=True):
        step, pad, apart = how
        seen = np.arange(width)[:, None] * apart + np.arange(count(length, width, *how)) * step - pad
        lines.append(np.where((seen >= 0) & (seen < length), seen, -1))
    down, across = lines[0][:, None, :, None], lines[1][None, :, None, :]
    pixels = np.where((down < 0) | (across < 0), size[0] * size[1], down * size[1] + across)
    return torch.from_numpy(pixels.reshape(-1).astype(np.int32))
