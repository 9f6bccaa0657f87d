"""Training masked against training compact: the same accuracy, sooner."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

from ..configs import Config, configured
from .accuracy import Results
from .drawing import Drawing
from .small import training_base
from .style import PALETTE, canvas, log_axis, save

__all__ = ["configs", "draw"]


def configs(scale: str) -> list[Config]:
    """SynFlow at three compressions, each trained both ways in turns."""
    base = configured(training_base(scale), task="timing")
    return [configured(base, compression=10**exponent) for exponent in (1.0, 2.0, 3.0 if scale != "smoke" else 1.5)]


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Seconds of an epoch, median over the epochs."""
    del scale
    table: list[dict[str, Any]] = []
    curves: dict[str, list[tuple[float, float]]] = {"masked": [], "compact": []}
    for result in sorted(results, key=lambda r: float(r["config"]["compression"])):
        x, outcome = math.log10(result["config"]["compression"]), result["outcome"]
        times = {name: median(outcome[name]["seconds"]) for name in curves}
        for name in curves:
            curves[name].append((x, times[name]))
        table.append(
            {
                "compression": f"10^{x:g}", "masked epoch (s)": _seconds(outcome["masked"]["seconds"]),
                "compact epoch (s)": _seconds(outcome["compact"]["seconds"]),
                "faster": f"{times['masked'] / times['compact']:.2f}x",
                "top-1 masked": f"{outcome['masked']['top1']:.2f}",
                "top-1 compact": f"{outcome['compact']['top1']:.2f}",
                "MFLOPs masked": f"{outcome['masked']['flops'] / 1e6:.1f}",
                "MFLOPs compact": f"{outcome['compact']['flops'] / 1e6:.1f}",
            }
        )  # fmt: skip
    with canvas(width=4.2, height=3.0) as (figure, axes):
        panel = axes[0][0]
        for colour, (name, found) in zip((PALETTE[1], PALETTE[0]), curves.items(), strict=True):
            panel.plot(*zip(*found, strict=True), color=colour, marker="o", label=name)
        log_axis(panel, 0, 3)
        panel.set(xlabel="compression", ylabel="seconds per epoch", ylim=(0, None))
        panel.legend(fontsize=8)
        paths = save(figure, folder, "timing")
    notes = (
        "both trained in turns on the same machine; differences of accuracy are rounding",
        "seconds of an epoch: the median over epochs, in brackets the fastest and the slowest (often the first)",
    )
    return Drawing(tuple(paths), table, notes)


def _seconds(epochs: list[float]) -> str:
    """The median with its range."""
    return f"{median(epochs):.2f} ({min(epochs):.2f} to {max(epochs):.2f})"
