"""Past the published range: where only SynFlow has a path left, by the paper's own recipe."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ..configs import Config, configured
from .accuracy import Results, methods_grid
from .drawing import Drawing
from .fig6 import theirs
from .small import training_base
from .style import COLOURS, LABELS, MARKERS, canvas, log_axis, save
from .uncertainty import half_width, interval, tested

__all__ = ["configs", "draw"]

EXPONENTS = {"smoke": (1.0, 1.5), "laptop": (3.0, 3.5, 4.0), "paper": (2.5, 3.0, 3.5, 4.0, 4.5)}
# Other methods at the paper's scale, where they are published; SNIP and GraSP as the authors' first version scored,
# which the published accuracies belong to.
OTHERS: tuple[dict[str, Any], ...] = (
    {"method": "snip", "compression": 10**3.0, "scoring": "eval"},
    {"method": "grasp", "compression": 10**3.0, "scoring": "eval"},
    {"method": "magnitude", "compression": 10**2.5},
)


def configs(scale: str) -> list[Config]:
    """SynFlow on VGG-11, and a few points of others; at laptop scale a tenth of the images and 8 epochs."""
    base = training_base(scale)
    if scale == "laptop":
        base = replace(base, width=1.0, train_per_class=500)
    seeds = (0,) if scale == "smoke" else (0, 1, 2)
    others = OTHERS if scale == "paper" else ()
    theirs_too = [configured(base, seed=seed, **changes) for changes in others for seed in seeds]
    return methods_grid(base, EXPONENTS[scale], seeds, ("synflow",)) + theirs_too


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Accuracy with its interval over test images; the authors' means beside it where they published one."""
    first = results[0]["config"]
    published = {
        method: {x: mean for x, mean, _, _ in curve}
        for method, curve in theirs(first["model"], first["dataset"]).items()
    }
    groups: dict[tuple[str, float], list[Any]] = {}
    for result in sorted(results, key=lambda one: (one["config"]["method"] != "synflow", one["config"]["compression"])):
        groups.setdefault((result["config"]["method"], result["config"]["compression"]), []).append(result)
    table = []
    with canvas(1, 1, width=4.6, height=3.2) as (figure, axes):
        panel = axes[0][0]
        for (method, compression), group in groups.items():
            power = round(math.log10(compression), 6)
            for result in group:
                top1 = result["outcome"]["top1"]
                panel.errorbar(
                    power, top1, half_width(top1, tested(first)), color=COLOURS[method], marker=MARKERS[method],
                    capsize=2,
                    label=None if LABELS[method] in panel.get_legend_handles_labels()[1] else LABELS[method],
                )  # fmt: skip
            table.append(_row(method, power, group, published.get(method, {}).get(power)))
        for method in dict.fromkeys(method for method, _ in groups) if scale == "paper" else ():
            near = [(x, mean) for x, mean in published.get(method, {}).items() if x >= 2]
            look = {"color": COLOURS[method], "marker": MARKERS[method]}
            panel.plot(*zip(*near, strict=True), **look, fillstyle="none", linestyle=":", linewidth=1)
        log_axis(panel, 2, 5)
        panel.set(xlabel="compression", ylabel="top-1 accuracy (%)")
        panel.legend(fontsize=8)
        paths = save(figure, folder, "past")
    return Drawing(tuple(paths), table, ("± is the 95% interval over test images; open markers are published means",))


def _row(method: str, power: float, group: list[Any], published: float | None) -> dict[str, str]:
    mean = {key: fmean(result["outcome"][key] for result in group) for key in ("kept", "parameters", "flops")}
    return {
        "method": LABELS[method], "compression": f"10^{power:g}", "weights": f"{mean['kept']:,.0f}",
        "parameters": f"{mean['parameters']:,.0f}", "MFLOPs": f"{mean['flops'] / 1e6:.2f}",
        "top-1 (%)": interval(group), "published": "" if published is None else f"{published:.1f}",
    }  # fmt: skip
