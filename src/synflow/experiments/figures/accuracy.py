"""Accuracy against compression: the panel that figures 1 and 6 and their variations share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..configs import Config, configured
from ..sweeps import unique
from .style import COLOURS, LABELS, MARKERS, METHODS, band, log_axis

__all__ = [
    "NO_PATH",
    "SPREAD",
    "Results",
    "accuracy_rows",
    "draw_panel",
    "methods_grid",
    "notes_on",
    "outcomes",
    "points",
]

Results = Sequence[Mapping[str, Any]]
Point = tuple[float, float, float, float]
# What marks in tables of accuracies mean.
NO_PATH = "† no path from input to output was left in at least one run"
SPREAD = "means over seeds; in brackets the lowest and the highest"
ONE_SEED = "one seed: differences of a percent or two are noise"


def methods_grid(
    base: Config, exponents: Sequence[float], seeds: Sequence[int], methods: Sequence[str] = METHODS
) -> list[Config]:
    """Every method at every power of ten, for every seed."""
    return unique(
        configured(base, method=method, compression=10**exponent, seed=seed)
        for seed in seeds
        for method in methods
        for exponent in exponents
    )


def outcomes(results: Results, key: str) -> dict[str, Mapping[str, Any]]:
    """What came out for each method, in the order of figures, where it has this key."""
    found = {result["config"]["method"]: result["outcome"] for result in results if key in result["outcome"]}
    return {method: found[method] for method in METHODS if method in found}


def points(results: Results, chosen: Callable[[Mapping[str, Any]], bool], key: str = "top1") -> list[Point]:
    """Log10 of compression, mean, least and largest outcome over seeds of the results whose config is chosen."""
    found: dict[float, list[float]] = {}
    for result in results:
        if chosen(result["config"]) and result["outcome"].get(key) is not None:
            exponent = round(math.log10(result["config"]["compression"]), 6)
            found.setdefault(exponent, []).append(float(result["outcome"][key]))
    return [(x, fmean(values), min(values), max(values)) for x, values in sorted(found.items())]


def notes_on(results: Results) -> tuple[str, ...]:
    """What a reader of accuracies has to know: what the marks in the table mean, and how many seeds there are."""
    cut = any(result["outcome"].get("connected") is False for result in results)
    several = len({result["config"]["seed"] for result in results}) > 1
    return (*([NO_PATH] if cut else []), SPREAD if several else ONE_SEED)


def method_points(results: Results, method: str) -> list[Point]:
    """A method's points; the dense network, which all methods share, is the first of each."""
    return points(results, lambda config: config["method"] in (method, "dense"))


def draw_panel(
    axes: Any,
    results: Results,
    published: Mapping[str, Sequence[Point]] | None = None,
    most: float | None = None,
    critical: Mapping[str, float] | None = None,
) -> None:
    """Curves with bands over seeds, the published ones dotted, arrows at critical and a line at max compression."""
    for method in METHODS:
        found = method_points(results, method)
        if not found:
            continue
        look = {"color": COLOURS[method], "marker": MARKERS[method]}
        band(axes, found, **look, label=LABELS[method], zorder=3 if method == "synflow" else 2)
        for x, mean, _, _ in (published or {}).get(method, ()):
            axes.plot([x], [mean], **look, alpha=0.45, markersize=6, fillstyle="none", linestyle="none", zorder=1)
        if critical and method in critical:
            # Side by side where several methods share a critical compression.
            alike = [other for other in METHODS if critical.get(other) == critical[method]]
            place = critical[method] + 0.05 * (alike.index(method) - (len(alike) - 1) / 2)
            axes.annotate(
                "", (place, 0), (place, 9),
                arrowprops={"arrowstyle": "-|>", "color": COLOURS[method], "linewidth": 1.4},
            )  # fmt: skip
    exponents = [math.log10(result["config"]["compression"]) for result in results]
    edge = max(exponents, default=1.0)
    if most is not None:
        edge = max(edge, most)
        axes.axvline(most, color="black", linestyle=":", linewidth=1.2)
        axes.text(most - 0.04, 0.97, "max", rotation=90, ha="right", va="top", transform=axes.get_xaxis_transform())
    log_axis(axes, 0, math.ceil(edge))
    axes.set_ylim(0, None)
    axes.set_xlabel("compression")
    axes.set_ylabel("top-1 accuracy (%)")


def accuracy_rows(results: Results, published: Mapping[str, Sequence[Point]] | None = None) -> list[dict[str, Any]]:
    """A table: a row per compression, a column per method, and whether the network was still connected."""
    curves = {method: {x: rest for x, *rest in method_points(results, method)} for method in METHODS}
    dead = {
        (result["config"]["method"], round(math.log10(result["config"]["compression"]), 6))
        for result in results
        if result["outcome"].get("connected") is False
    }
    rows = []
    for x in sorted({x for curve in curves.values() for x in curve}):
        row: dict[str, Any] = {"compression": f"10^{x:g}"}
        for method in METHODS:
            if x not in curves[method]:
                continue
            mean, low, high = curves[method][x]
            spread = "" if low == high else f" ({low:.1f} to {high:.1f})"
            row[LABELS[method]] = f"{mean:.1f}{spread}" + (" †" if (method, x) in dead else "")
            theirs = {px: pm for px, pm, _, _ in (published or {}).get(method, ())}
            if x in theirs:
                row[f"{LABELS[method]}, published"] = f"{theirs[x]:.1f}"
        rows.append(row)
    return rows
