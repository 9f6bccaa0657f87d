"""The sceptic's question: what does pruning before training buy against a narrower dense network?

At equal stored weights, equal operations, equal parameters in memory, equal seconds of training: a Pareto front each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..configs import Config, configured
from ..recipes import Recipe
from ..sweeps import unique
from .accuracy import Results
from .drawing import Drawing
from .small import training_base
from .style import PALETTE, canvas, save
from .uncertainty import interval

__all__ = ["configs", "draw", "front"]

SPARSE: dict[str, dict[str, Any]] = {
    "SynFlow": {"method": "synflow"},
    "random, ERK densities": {"method": "random", "scope": "erk"},
    "magnitude": {"method": "magnitude"},
}
DENSE = "dense, narrower"
AXES = {
    "kept": "stored weights", "flops": "operations of a forward pass", "parameters": "parameters in memory",
    "train_seconds": "seconds of training",
}  # fmt: skip
# Compressions as powers of ten, and widths of dense networks whose weights and operations span the same range.
EXPONENTS = {"smoke": (1.0, 1.5), "laptop": (3.5, 3.0, 2.5), "paper": (1.5, 2.0, 2.5, 3.0, 3.5)}
WIDTHS = {
    "smoke": (0.125, 0.25), "laptop": (0.03125, 0.0625, 0.125, 0.1875),
    "paper": (0.03125, 0.0625, 0.125, 0.1875, 0.25, 0.375),
}  # fmt: skip
# On a laptop: a tenth of the training images, all test images.
LAPTOP = Recipe(epochs=12, batch_size=64, lr=0.1, lr_schedule="one_cycle", weight_decay=5e-4, evaluate_every=12)


def configs(scale: str) -> list[Config]:
    """Sparse networks at several compressions and dense ones of several widths, seed by seed."""
    base = training_base(scale)
    if scale == "laptop":
        base = replace(base, width=1.0, train_per_class=500, recipe=LAPTOP)
    sparse = [{**changes, "compression": 10**x} for x in EXPONENTS[scale] for changes in SPARSE.values()]
    dense = [{"method": "dense", "width": width} for width in WIDTHS[scale]]
    seeds = (0,) if scale == "smoke" else (0, 1, 2)
    return unique(configured(base, **changes, seed=seed) for seed in seeds for changes in (*dense, *sparse))


def label(config: Mapping[str, Any]) -> str:
    """The curve that a run belongs to."""
    found = [name for name, changes in SPARSE.items() if changes["method"] == config["method"]]
    return found[0] if found else DENSE


def front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other point beats at the same cost or less, from cheap to dear.

    >>> front([(1, 50), (2, 40), (3, 60)])
    [(1, 50), (3, 60)]
    """
    found: list[tuple[float, float]] = []
    for cost, gain in sorted(points, key=lambda point: (point[0], -point[1])):
        if not found or gain > found[-1][1]:
            found.append((cost, gain))
    return found


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Accuracy against four costs; lines are Pareto fronts over compressions or widths."""
    del scale
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for result in results:
        config = result["config"]
        name = label(config)
        groups.setdefault((name, config["width"] if name == DENSE else config["compression"]), []).append(result)
    table = [_row(name, size, group) for (name, size), group in groups.items()]
    with canvas(1, len(AXES), width=3.3, height=3.2) as (figure, axes):
        for panel, (key, said) in zip(axes[0], AXES.items(), strict=True):
            for colour, name in zip(PALETTE, (*SPARSE, DENSE), strict=False):
                means = [
                    (_mean(group, key), _mean(group, "top1")) for (curve, _), group in groups.items() if curve == name
                ]
                single = [
                    (r["outcome"][key], r["outcome"]["top1"]) for (n, _), g in groups.items() if n == name for r in g
                ]
                panel.scatter(*zip(*single, strict=True), s=9, color=colour, alpha=0.5) if single else None
                if means:
                    panel.plot(*zip(*front(means), strict=True), color=colour, marker="o", label=name)
            panel.set(xscale="log", xlabel=said, ylabel="top-1 accuracy (%)")
        axes[0][0].legend(fontsize=7)
        paths = save(figure, folder, "sceptic")
    notes = (
        "operations and parameters are those of the compact network, zeros inside its layers included",
        "seconds are of training and evaluation, not of pruning",
        "lines are Pareto fronts of means over seeds, dots are single runs; ± is the 95% interval over test images",
        "† no path from input to output was left",
    )
    return Drawing(tuple(paths), table, notes)


def _mean(group: list[Mapping[str, Any]], key: str) -> float:
    return sum(float(result["outcome"][key]) for result in group) / len(group)


def _row(name: str, size: float, group: list[Mapping[str, Any]]) -> dict[str, Any]:
    sized = f"width {size:g}" if name == DENSE else f"compression {size:,.0f}"
    dead = "" if all(result["outcome"].get("connected", True) for result in group) else " †"
    row: dict[str, Any] = {"network": f"{name}, {sized}", "top-1 (%)": interval(group) + dead}
    for key, said in AXES.items():
        row[said] = f"{_mean(group, key):,.0f}"
    return row
