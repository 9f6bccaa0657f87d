"""The number of windows of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def count(length: int, width: int, stride: int, padding: int, dilation: int) -> int:
    """The number of windows along one dimension.

    >>> count(6, 3, 1, 1, 1), count(6, 3, 2, 0, 2)
    (6, 1)
    """
    return (length + 2 * padding - dilation * (width - 1) - 1) // stride + 1


def sizes(x: Sequence[int], weight: Sequence[int], how: Any) -> list[int]:
    """The number of positions of a convolution in each dimension; `how` begins with stride, padding, dilation."""
    return [count(*along) for along in zip(x[2:], weight[2:], *how[:3], strict=True)]
