"""Does it help SNIP to be iterated? The paper's appendix says: not enough."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..configs import Config
from .accuracy import Results
from .curves import draw_curves, variation_configs
from .drawing import Drawing

__all__ = ["configs", "draw"]


def variations(scale: str) -> dict[str, dict[str, object]]:
    """SNIP in one step, in many, and SynFlow."""
    steps = 5 if scale == "smoke" else 100
    return {
        "SNIP, 1 step": {"method": "snip"},
        f"SNIP, {steps} steps": {"method": "snip", "steps": steps},
        "SynFlow, 100 steps": {"method": "synflow"},
    }


def configs(scale: str) -> list[Config]:
    """The runs of a scale."""
    return variation_configs(scale, variations(scale))


def _is(config: dict[str, object], changes: dict[str, object]) -> bool:
    return config["method"] == changes["method"] and config["steps"] == changes.get("steps")


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Accuracy, and how many layers were lost."""
    chosen = {label: partial(_is, changes=changes) for label, changes in variations(scale).items()}
    keys = (("top1", "top-1 accuracy (%)"), ("empty_layers", "empty layers"))
    return draw_curves(results, folder, "iterative_snip", "SNIP, iterated", chosen, keys)
