"""Weights through training: do they come to obey the inverse law of layer sizes? (figure 5b)"""

from __future__ import annotations

from typing import Any

import synflow

from ..methods import make_model
from ..runs import Run
from .train import mean_square, train_from_checkpoint

__all__ = ["magnitudes"]


def magnitudes(run: Run) -> dict[str, Any]:
    """The average squared magnitude of each layer at initialisation and after every epoch."""
    model = make_model(run.config)
    sizes = {name.removesuffix(".weight"): weight.numel() for name, weight in synflow.prunable(model).items()}
    start = mean_square(model)
    history = train_from_checkpoint(run, model, lambda trained: {"mean_square": mean_square(trained)})
    return {
        "sizes": sizes, "mean_square": [start, *(line["mean_square"] for line in history)],
        "top1": history[-1]["top1"] if history else None,
    }  # fmt: skip
