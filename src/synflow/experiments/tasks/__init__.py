"""What a run does: each task takes a `Run` and returns its outcome, plain numbers and lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..runs import Run
from .batch_norm import batch_norm
from .cost import cost
from .imp import imp
from .layers import layers
from .magnitudes import magnitudes
from .ratios import ratios
from .timing import timing
from .train import train

__all__ = ["TASKS"]

TASKS: dict[str, Callable[[Run], dict[str, Any]]] = {
    "batch_norm": batch_norm,
    "cost": cost,
    "imp": imp,
    "layers": layers,
    "magnitudes": magnitudes,
    "ratios": ratios,
    "timing": timing,
    "train": train,
}
