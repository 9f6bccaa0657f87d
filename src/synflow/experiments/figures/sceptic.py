"""The sceptic's question: why not a plain narrower network, or random masks with good densities?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..configs import Config
from .accuracy import Results
from .curves import draw_curves, variation_configs
from .drawing import Drawing

__all__ = ["configs", "draw"]

VARIATIONS: dict[str, dict[str, Any]] = {
    "SynFlow, compact": {"method": "synflow"},
    "narrower, same FLOPs": {"method": "narrow_flops"},
    "narrower, same weights": {"method": "narrow_weights"},
    "random, ERK densities": {"method": "random", "scope": "erk"},
}


def configs(scale: str) -> list[Config]:
    """The runs of a scale."""
    return variation_configs(scale, VARIATIONS)


def _is(config: dict[str, Any], changes: dict[str, Any]) -> bool:
    return bool(config["method"] == changes["method"] and config["scope"] == changes.get("scope", "global"))


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Accuracy, seconds of training, and accuracy per second of training."""
    del scale
    chosen = {label: partial(_is, changes=changes) for label, changes in VARIATIONS.items()}
    rated = []
    for result in results:
        outcome = dict(result["outcome"])
        outcome["rate"] = outcome["top1"] / outcome["train_seconds"] if outcome.get("train_seconds") else None
        outcome["megaflops"] = outcome["flops"] / 1e6
        rated.append({**result, "outcome": outcome})
    keys = (
        ("top1", "top-1 accuracy (%)"), ("train_seconds", "training (s)"),
        ("rate", "accuracy per second (%/s)"), ("megaflops", "MFLOPs of a forward pass"),
    )  # fmt: skip
    drawing = draw_curves(rated, folder, "sceptic", "SynFlow against plain alternatives", chosen, keys)
    note = "training time counts training and evaluation, not pruning; all trained by the same recipe"
    return Drawing(drawing.paths, drawing.table, (note,))
