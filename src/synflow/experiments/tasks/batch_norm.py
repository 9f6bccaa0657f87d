"""Conservation through batch norm (appendix B): at initialisation it holds, with trained shifts the shifts join in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import synflow

from ..methods import example_of, make_model
from ..runs import Run

__all__ = ["batch_norm"]


def batch_norm(run: Run) -> dict[str, Any]:
    """Inflow and outflow of every unit, for a fresh network and for one whose batch norms have lived.

    The first is conserved as if there were no batch norm. In the second the gains and shifts are random, as training
    leaves them: each unit's outflow is then the inflow of its weights plus that of its own shift.
    """
    config = run.config
    model, example = make_model(config), example_of(config)
    found: dict[str, Any] = {}
    for state in ("fresh", "trained"):
        if state == "trained":
            _live(model, config.seed)
        measured = synflow.conservation(model, example)
        inflow = torch.cat([pair[0].flatten() for pair in measured.units.values()]).double()
        outflow = torch.cat([pair[1].flatten() for pair in measured.units.values()]).double()
        scores = synflow.score(model, example)
        totals = {name: float(score.double().sum()) for name, score in scores.items()}
        largest = max(totals.values())
        found[state] = {
            "inflow": inflow.tolist(), "outflow": outflow.tolist(), "unit_residual": measured.unit_residual,
            "layer_residual": measured.layer_residual,
            "layers_with_shifts": {name: total / largest for name, total in totals.items()},
        }  # fmt: skip
    return found


def _live(model: nn.Module, seed: int) -> None:
    """Gains, shifts and statistics away from their initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                for tensor, low, high in (
                    (module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5),
                    (module.running_mean, -0.5, 0.5), (module.running_var, 0.5, 1.5),
                ):  # fmt: skip
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)
