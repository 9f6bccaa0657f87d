"""Figure 10: linear against exponential schedules: the largest share of the flow that a step prunes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..configs import Config, configured
from .accuracy import Results
from .drawing import Drawing
from .style import PALETTE, canvas, save

__all__ = ["configs", "draw"]


def configs(scale: str) -> list[Config]:
    """Two schedules, numbers of steps and compressions; no guard, as in the paper."""
    steps: tuple[int, ...]
    exponents: tuple[float, ...]
    if scale == "smoke":
        base, steps, exponents = Config(task="ratios", model="conv", dataset="digits"), (1, 5), (1.0, 2.0)
    elif scale == "laptop":
        base = Config(task="ratios", model="vgg16_bn", width=0.25, dataset="cifar100")
        steps, exponents = (1, 10, 100), (1.0, 2.0, 3.0)
    else:
        base = Config(task="ratios", model="vgg16_bn", dataset="cifar100")
        steps, exponents = (1, 10, 50, 100), (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    return [
        configured(base, schedule=schedule, steps=number, compression=10**exponent)
        for schedule in ("linear", "exponential")
        for number in steps
        for exponent in exponents
    ]


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """A panel for each schedule; below the dotted line Theorem 3 promises that nothing collapses."""
    del scale
    table: list[dict[str, Any]] = []
    with canvas(1, 2, width=3.6, height=3.0) as (figure, axes):
        for panel, schedule in zip(axes[0], ("linear", "exponential"), strict=True):
            part = [r for r in results if r["config"]["schedule"] == schedule]
            numbers = sorted({r["config"]["steps"] for r in part})
            for colour, number in zip(PALETTE, numbers, strict=False):
                runs = sorted(
                    (math.log10(r["config"]["compression"]), r["outcome"]["largest"], r["outcome"]["alive"])
                    for r in part
                    if r["config"]["steps"] == number
                )
                x, y, alive = zip(*runs, strict=True)
                panel.plot(x, y, color=colour, marker="o", label=f"{number} step{'s' * (number > 1)}")
                for place, whole in enumerate(alive):
                    if not whole:
                        panel.plot(x[place], y[place], color=colour, marker="x", markersize=9, markeredgewidth=2)
                    table.append(
                        {
                            "schedule": schedule, "steps": number, "compression": f"10^{x[place]:g}",
                            "largest prune size / cut size": f"{y[place]:.4g}",
                            "every layer left": "yes" if whole else "no",
                        }
                    )  # fmt: skip
            panel.axhline(1, color="black", linestyle=":", linewidth=1)
            panel.set(yscale="log", title=f"{schedule} schedule", xlabel="log10 of compression")
        axes[0][0].set_ylabel("largest prune size / cut size")
        axes[0][1].legend(fontsize=8)
        paths = save(figure, folder, "fig10")
    return Drawing(tuple(paths), table, ("crosses: a layer lost all its weights",))
