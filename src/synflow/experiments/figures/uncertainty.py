"""How sure an accuracy is: the range over seeds, or for one seed an interval over test images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..data import SHAPES, SIZES

__all__ = ["half_width", "interval", "tested"]

# The 97.5th percentile of the normal distribution: two-sided intervals of 95%.
NORMAL = 1.96


def tested(config: Mapping[str, Any]) -> int:
    """How many images the accuracy of a run was measured on.

    >>> tested({"dataset": "cifar10", "test_per_class": None}), tested({"dataset": "digits", "test_per_class": 5})
    (10000, 50)
    """
    name, part = config["dataset"], config.get("test_per_class")
    return min(SIZES[name][1], part * SHAPES[name][0]) if part else SIZES[name][1]


def half_width(top1: float, images: int) -> float:
    """Half the width of the 95% interval of an accuracy in percent, measured on `images` test images.

    >>> round(half_width(77.0, 10_000), 2)
    0.82
    """
    share = min(max(top1 / 100, 0.0), 1.0)
    return 100 * NORMAL * math.sqrt(share * (1 - share) / images)


def interval(results: Sequence[Mapping[str, Any]]) -> str:
    """The mean accuracy with its uncertainty, in words."""
    found = sorted(float(result["outcome"]["top1"]) for result in results)
    mean = sum(found) / len(found)
    if len(found) == 1:
        return f"{mean:.1f} ± {half_width(mean, tested(results[0]['config'])):.1f}"
    return f"{mean:.1f} ({found[0]:.1f} to {found[-1]:.1f}, {len(found)} seeds)"
