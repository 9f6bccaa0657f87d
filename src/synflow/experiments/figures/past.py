"""Past the published range: where only SynFlow has a path left, by the paper's own recipe."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..configs import Config
from .accuracy import Results, methods_grid
from .drawing import Drawing
from .fig6 import theirs
from .small import training_base
from .style import COLOURS, canvas, log_axis, save
from .uncertainty import half_width, interval

__all__ = ["configs", "draw"]

EXPONENTS = {"smoke": (1.0, 1.5), "laptop": (3.0, 3.5, 4.0), "paper": (2.5, 3.0, 3.5, 4.0, 4.5)}


def configs(scale: str) -> list[Config]:
    """SynFlow on VGG-11; at laptop scale a tenth of the images and 8 epochs."""
    base = training_base(scale)
    if scale == "laptop":
        base = replace(base, width=1.0, train_per_class=500)
    seeds = (0,) if scale == "smoke" else (0, 1, 2)
    return methods_grid(base, EXPONENTS[scale], seeds, ("synflow",))


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Accuracy with its interval over test images; the authors' means beside it where they published one."""
    first = results[0]["config"]
    published = {x: mean for x, mean, _, _ in theirs(first["model"], first["dataset"]).get("synflow", ())}
    groups: dict[float, list[Any]] = {}
    for result in sorted(results, key=lambda one: one["config"]["compression"]):
        groups.setdefault(result["config"]["compression"], []).append(result)
    table = []
    with canvas(1, 1, width=4.6, height=3.2) as (figure, axes):
        panel = axes[0][0]
        for compression, group in groups.items():
            power = round(math.log10(compression), 6)
            for result in group:
                top1 = result["outcome"]["top1"]
                panel.errorbar(power, top1, half_width(top1), color=COLOURS["synflow"], marker="o", capsize=2)
            about = group[0]["outcome"]
            row = {
                "compression": f"10^{power:g}", "weights": f"{about['kept']:,}",
                "parameters": f"{about['parameters']:,}", "MFLOPs": f"{about['flops'] / 1e6:.2f}",
                "top-1 (%)": interval(group),
                "published": f"{published[power]:.1f}" if power in published else "",
            }  # fmt: skip
            table.append(row)
        if scale == "paper":
            near = [(x, mean) for x, mean in published.items() if x >= 2]
            panel.plot(*zip(*near, strict=True), color=COLOURS["synflow"], marker="o", fillstyle="none", linestyle=":")
        log_axis(panel, 2, 5)
        panel.set(xlabel="compression", ylabel="top-1 accuracy (%)")
        paths = save(figure, folder, "past")
    return Drawing(tuple(paths), table, ("± is the 95% interval over test images; open markers are published means",))
