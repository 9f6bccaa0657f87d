"""How figures look: colours that colour-blind readers can tell apart, one file for print and one for the screen."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from synflow.errors import need

from ..sealed_json import write_drawing

__all__ = ["COLOURS", "LABELS", "MARKERS", "METHODS", "band", "canvas", "log_axis", "log_cost_axis", "log_log", "save"]

METHODS = ("random", "magnitude", "snip", "grasp", "synflow")
# Okabe and Ito.
COLOURS = {
    "random": "#7F7F7F", "magnitude": "#E69F00", "snip": "#009E73", "grasp": "#CC79A7", "synflow": "#0072B2",
    "dense": "#000000", "narrow_flops": "#D55E00", "narrow_weights": "#E69F00", "random_erk": "#7F7F7F",
}  # fmt: skip
PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
    "#7F7F7F",
    "#F0E442",
    "#000000",
    "#8C564B",
)
NETWORKS = {"resnet20": "ResNet-20", "vit": "small ViT", "vgg11_bn": "VGG-11", "mobilenet": "MobileNet-like"}
MARKERS = {"random": "s", "magnitude": "^", "snip": "D", "grasp": "v", "synflow": "o"}
LABELS = {
    "random": "Random", "magnitude": "Magnitude", "snip": "SNIP", "grasp": "GraSP", "synflow": "SynFlow",
    "dense": "dense", "narrow_flops": "narrower, same FLOPs", "narrow_weights": "narrower, same weights",
    "random_erk": "Random, ERK densities",
}  # fmt: skip


@contextmanager
def canvas(rows: int = 1, columns: int = 1, width: float = 3.6, height: float = 3.0) -> Iterator[tuple[Any, Any]]:
    """A figure and its grid of axes, closed afterwards."""
    matplotlib = need("matplotlib", extra="experiments")
    backend = need("matplotlib.backends.backend_agg", extra="experiments")
    figures = need("matplotlib.figure", extra="experiments")
    settings = {
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
        "svg.hashsalt": "synflow", "svg.fonttype": "path", "axes.titlesize": 9, "lines.linewidth": 1.6,
        "lines.markersize": 4,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        figure = figures.Figure(figsize=(width * columns, height * rows), layout="constrained")
        backend.FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write the figure as SVG, for print, and as PNG, for the screen."""
    paths = []
    for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 170})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **options)
        paths.append(folder / f"{name}.{kind}")
        write_drawing(paths[-1], buffer.getvalue())
    return paths


def band(axes: Any, points: Sequence[tuple[float, float, float, float]], **look: Any) -> None:
    """A line through the means, and a band from the least to the largest value where there are several runs."""
    if not points:
        return
    x, mean, low, high = zip(*points, strict=True)
    axes.plot(x, mean, **look)
    if any(a != b for a, b in zip(low, high, strict=True)):
        axes.fill_between(x, low, high, color=look.get("color"), alpha=0.18, linewidth=0)


def log_axis(axes: Any, least: float, most: float) -> None:
    """Powers of ten below the axis of log10 values."""
    ticks = range(int(least), int(most) + 1)
    axes.set_xticks(list(ticks), [f"$10^{{{tick}}}$" for tick in ticks])


def log_cost_axis(axes: Any) -> None:
    """A logarithmic x axis with a label at 1, 2 and 5 of each decade, over at least a factor of six."""
    ticker = need("matplotlib.ticker", extra="experiments")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    spare = max(1.0, (6 / (high / low)) ** 0.5)
    axes.set_xlim(low / spare, high * spare)
    wide = math.log10(high / low) > 1.8
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    text = ticker.FuncFormatter(lambda value, _: f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:g} M")
    axes.xaxis.set_major_formatter(text)
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def log_log(axes: Any) -> None:
    """Two logarithmic axes whose labels never run into each other, be it one decade or ten."""
    ticker = need("matplotlib.ticker", extra="experiments")
    axes.set(xscale="log", yscale="log")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        narrow = math.log10(high / low) < 1.5
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 3.0) if narrow else (1.0,), numticks=6))
        axis.set_minor_formatter(ticker.NullFormatter())
        if narrow:
            axis.set_major_formatter(ticker.LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(9, 9)))
