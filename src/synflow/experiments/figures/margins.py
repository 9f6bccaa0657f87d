"""Our certified schedule against the paper's: accuracy, flow that is left, and steps taken."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..configs import Config
from .accuracy import Results
from .curves import draw_curves, variation_configs
from .drawing import Drawing

__all__ = ["configs", "draw"]

VARIATIONS: dict[str, dict[str, object]] = {
    "100 exponential steps": {},
    "certified, margin 0.99": {"schedule": "certified", "margin": 0.99},
    "certified, margin 0.5": {"schedule": "certified", "margin": 0.5},
    "certified, margin 0.2": {"schedule": "certified", "margin": 0.2},
}


def configs(scale: str) -> list[Config]:
    """The runs of a scale."""
    return variation_configs(scale, VARIATIONS)


def _is(config: dict[str, object], changes: dict[str, object]) -> bool:
    return all(config[name] == changes.get(name, getattr(Config(), name)) for name in ("schedule", "margin"))


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Accuracy, flow, steps and seconds."""
    del scale
    chosen = {label: partial(_is, changes=changes) for label, changes in VARIATIONS.items()}
    keys = (
        ("top1", "top-1 accuracy (%)"),
        ("flow_log2", "log2 of the flow left"),
        ("prune_steps", "steps"),
        ("prune_seconds", "seconds of pruning"),
    )
    return draw_curves(results, folder, "margins", "Certified margins", chosen, keys)
