"""How sure an accuracy is: the range over seeds, or for one seed an interval over test images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["half_width", "interval"]

TEST_IMAGES = 10_000  # of CIFAR and MNIST; data sets with fewer are given their number
# The 97.5th percentile of the normal distribution: two-sided intervals of 95%.
NORMAL = 1.96


def half_width(top1: float, images: int = TEST_IMAGES) -> float:
    """Half the width of the 95% interval of an accuracy in percent, measured on `images` test images.

    >>> round(half_width(77.0), 2)
    0.82
    """
    share = min(max(top1 / 100, 0.0), 1.0)
    return 100 * NORMAL * math.sqrt(share * (1 - share) / images)


def interval(results: Sequence[Mapping[str, Any]], images: int = TEST_IMAGES) -> str:
    """The mean accuracy with its uncertainty, in words."""
    found = sorted(float(result["outcome"]["top1"]) for result in results)
    mean = sum(found) / len(found)
    if len(found) == 1:
        return f"{mean:.1f} ± {half_width(mean, images):.1f}"
    return f"{mean:.1f} ({found[0]:.1f} to {found[-1]:.1f}, {len(found)} seeds)"
