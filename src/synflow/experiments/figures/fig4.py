"""Figure 4: the average score of a layer against the inverse of its size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .accuracy import Results, outcomes
from .drawing import Drawing
from .fig2 import image_notes, title
from .fig3 import configs
from .style import COLOURS, LABELS, canvas, log_log, save

__all__ = ["configs", "draw"]


def slope(sizes: dict[str, int], means: dict[str, float]) -> float:
    """The slope of log score over log inverse size by least squares: one if every layer carries the same sum."""
    x = [-math.log(sizes[name]) for name in sizes if means[name]]
    y = [math.log(abs(means[name])) for name in sizes if means[name]]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """A dot for every layer; the dotted line has slope one."""
    del scale
    found = outcomes(results, "mean_score")
    table: list[dict[str, Any]] = []
    with canvas(1, len(found), width=2.7, height=2.9) as (figure, axes):
        for panel, (method, outcome) in zip(axes[0], found.items(), strict=True):
            sizes, means = outcome["sizes"], outcome["mean_score"]
            x, y = [1 / sizes[name] for name in sizes], [abs(means[name]) for name in sizes]
            middle = math.exp(sum(math.log(b / a) for a, b in zip(x, y, strict=True) if b) / len(x))
            ends = [min(x), max(x)]
            panel.plot(ends, [middle * end for end in ends], color="black", linestyle=":", linewidth=1)
            panel.scatter(x, y, s=18, color=COLOURS[method])
            log_log(panel)
            panel.set(title=title(method, outcome["images"]), xlabel="1 / weights of the layer")
            signed = {name: outcome["sum_signed"][name] / sizes[name] for name in sizes}
            table.append(
                {
                    "method": LABELS[method], "layers": len(x), "slope": f"{slope(sizes, means):.3f}",
                    "slope of the signed saliency": f"{slope(sizes, signed):.3f}",
                }
            )  # fmt: skip
        axes[0][0].set_ylabel("average score of the layer")
        paths = save(figure, folder, "fig4")
    return Drawing(tuple(paths), table, ("a slope of one: every layer carries the same sum", *image_notes(results)))
