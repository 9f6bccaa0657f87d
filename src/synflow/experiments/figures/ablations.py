"""What of SynFlow's masks matters (appendix C): new weights, shuffled masks, inverted scores.

Done as the paper describes them, also where its published code does nothing or yields nan.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..configs import Config
from .accuracy import Results
from .curves import draw_curves, variation_configs
from .drawing import Drawing

__all__ = ["configs", "draw"]

LABELS = {
    "none": "SynFlow", "reinitialise": "new weights, same masks", "shuffle": "masks shuffled within layers",
    "invert": "lowest scores kept",
}  # fmt: skip


def configs(scale: str) -> list[Config]:
    """The runs of a scale."""
    return variation_configs(scale, {name: {"ablation": name} for name in LABELS})


def _is(config: dict[str, object], ablation: str) -> bool:
    return config["ablation"] == ablation


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """A curve for each ablation."""
    del scale
    chosen = {LABELS[name]: partial(_is, ablation=name) for name in LABELS}
    return draw_curves(results, folder, "ablations", "Ablations of SynFlow", chosen)
