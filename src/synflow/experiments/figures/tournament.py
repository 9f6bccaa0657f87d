"""Every score against every other: one network, one recipe, several compressions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from synflow import SCORES

from ..configs import Config
from .accuracy import Results
from .curves import draw_curves, variation_configs
from .drawing import Drawing

__all__ = ["configs", "draw"]


def configs(scale: str) -> list[Config]:
    """The runs of a scale; who takes part is the table of scores, so that a new score is in the tournament."""
    return variation_configs(scale, {name: {"method": name} for name in SCORES})


def _is(config: dict[str, object], method: str) -> bool:
    return config["method"] == method


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Accuracy and flow of each score."""
    del scale
    chosen = {name: partial(_is, method=name) for name in SCORES}
    return draw_curves(results, folder, "tournament", "Scores", chosen)
