"""Figure 10: linear against exponential schedules: the largest share of the flow that a step prunes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..configs import Config, configured
from .accuracy import Results
from .drawing import Drawing
from .style import COLOURS, canvas, save

__all__ = ["configs", "draw"]

# The published figure was made with as many weights at each step; a laptop also tries as much compression at each.
SCHEDULES = {"linear_density": "linear", "exponential": "exponential", "linear": "linear in compression"}


def configs(scale: str) -> list[Config]:
    """Schedules, numbers of steps and compressions; no guard, as in the paper."""
    steps: tuple[int, ...] = (1, *range(10, 101, 10))
    exponents: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    base, schedules = Config(task="ratios", model="vgg19", dataset="imagenet"), list(SCHEDULES)[:2]
    if scale == "smoke":
        base, steps, exponents = Config(task="ratios", model="conv", dataset="digits"), (1, 5), (1.0, 2.0)
    elif scale == "laptop":
        base, steps = Config(task="ratios", model="vgg16_bn", dataset="cifar100"), (1, 10, 50, 100)
        schedules = list(SCHEDULES)
    return [
        configured(base, schedule=schedule, steps=number, compression=10**exponent)
        for number in steps
        for exponent in exponents
        for schedule in schedules
    ]


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """A panel for each schedule, paler with compression; below the line Theorem 3 promises that nothing collapses."""
    del scale
    table: list[dict[str, Any]] = []
    shown = [name for name in SCHEDULES if any(r["config"]["schedule"] == name for r in results)]
    everything = [r["outcome"]["largest"] for r in results if r["outcome"]["largest"] > 0]
    with canvas(1, len(shown), width=3.6, height=3.0) as (figure, axes):
        for panel, schedule in zip(axes[0], shown, strict=True):
            part = [r for r in results if r["config"]["schedule"] == schedule]
            compressions = sorted({r["config"]["compression"] for r in part})
            for place, compression in enumerate(compressions):
                runs = sorted(
                    (r["config"]["steps"], r["outcome"]["largest"], r["outcome"]["alive"])
                    for r in part
                    if r["config"]["compression"] == compression
                )
                number, largest, _ = zip(*runs, strict=True)
                look = {"color": COLOURS["synflow"], "alpha": 1 - 0.75 * place / max(1, len(compressions) - 1)}
                said = f"10^{math.log10(compression):g}"
                panel.plot(number, largest, **look, marker="o", label=f"${said.replace('^', '^{')}}}$")
                for x, y, whole in runs:
                    if not whole:
                        panel.plot(x, y, **look, marker="x", markersize=9, markeredgewidth=2)
                table += [
                    {
                        "schedule": SCHEDULES[schedule], "compression": said, "steps": x,
                        "largest prune size / cut size": f"{y:.4g}", "every layer left": "yes" if whole else "no",
                    }
                    for x, y, whole in runs
                ]  # fmt: skip
            panel.axhline(1, color="black", linestyle=":", linewidth=1)
            panel.set(yscale="log", title=SCHEDULES[schedule], xlabel="steps")
            panel.set_ylim(min(*everything, 1) / 1.5, max(*everything, 1) * 1.5)
        axes[0][0].set_ylabel("largest prune size / cut size")
        # Beside the panels: inside, some curve is always in the way.
        lines = axes[0][0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside right center", fontsize=8, title="compression", title_fontsize=8)
        paths = save(figure, folder, "fig10")
    notes = (
        "crosses: a layer lost all its weights",
        "linear: the same number of weights at each step",
        "one draw of the weights; nothing here is trained",
    )
    return Drawing(tuple(paths), table, notes)
