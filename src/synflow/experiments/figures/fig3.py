"""Figure 3: the score that enters a hidden unit against the score that leaves it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..configs import Config, configured
from .accuracy import Results, outcomes
from .drawing import Drawing
from .fig2 import image_notes, layer_base, title
from .style import COLOURS, LABELS, METHODS, canvas, log_log, save

__all__ = ["configs", "draw"]

# What to call the largest difference between inflow and outflow, as a share of the largest flow.
DEGREES = {"yes": 1e-3, "nearly": 0.05, "no": math.inf}


def configs(scale: str) -> list[Config]:
    """Each method's scores at initialisation."""
    base = layer_base(scale)
    return [configured(base, method=method, **({"steps": None} if method == "synflow" else {})) for method in METHODS]


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """A dot for every unit between two convolutions; on the dotted line as much leaves as enters."""
    del scale
    found = outcomes(results, "inflow")
    table: list[dict[str, Any]] = []
    with canvas(1, len(found), width=2.7, height=2.9) as (figure, axes):
        for panel, (method, outcome) in zip(axes[0], found.items(), strict=True):
            pairs = _positive(outcome["inflow"], outcome["outflow"])
            look = {"s": 3, "color": COLOURS[method], "linewidths": 0, "rasterized": True}
            if "signed_inflow" in outcome:
                panel.scatter(*zip(*pairs, strict=True), **look, alpha=0.08)
                pairs = _positive(outcome["signed_inflow"], outcome["signed_outflow"])
            inflow, outflow = zip(*pairs, strict=True)
            low, high = min(inflow + outflow), max(inflow + outflow)
            panel.plot([low, high], [low, high], color="black", linestyle=":", linewidth=1, zorder=3)
            panel.scatter(inflow, outflow, **look, alpha=0.4)
            log_log(panel)
            panel.set(title=title(method, outcome["images"]), xlabel="score into the unit")
            table.append(
                {
                    "method": LABELS[method], "units": len(outcome["inflow"]),
                    "largest difference over largest flow": f"{outcome['unit_residual']:.1e}",
                    "negative or zero sums, not drawn": len(outcome["inflow"]) - len(pairs),
                    "conserved": next(word for word, most in DEGREES.items() if outcome["unit_residual"] < most),
                }
            )  # fmt: skip
        axes[0][0].set_ylabel("score out of the unit")
        paths = save(figure, folder, "fig3")
    notes = (
        "the law is one of signed saliency; SNIP prunes by absolute values, which are drawn pale behind it",
        "GraSP's saliency is that of a gradient's norm, not of the outputs alone, so the law holds nearly",
    )
    return Drawing(tuple(paths), table, (*notes, *image_notes(results)))


def _positive(inflow: list[float], outflow: list[float]) -> list[tuple[float, float]]:
    """Pairs that have a place on logarithmic axes."""
    return [(a, b) for a, b in zip(inflow, outflow, strict=True) if a > 0 and b > 0]
