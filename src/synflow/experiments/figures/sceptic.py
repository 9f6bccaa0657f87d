"""The sceptic's question: what does pruning before training buy against a narrower dense network?

At equal stored weights, equal operations, equal parameters in memory, equal seconds of training: a Pareto front each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..configs import Config, configured
from ..sweeps import unique
from .accuracy import NO_PATH, Results
from .drawing import Drawing
from .small import full_width_base
from .style import NETWORKS as NAMES
from .style import PALETTE, canvas, log_cost_axis, save
from .tournament import recipe_changes
from .uncertainty import half_width, interval, tested

__all__ = ["configs", "draw", "front"]

SPARSE: dict[str, dict[str, Any]] = {
    "balanced": {"method": "balanced"},
    "SynFlow": {"method": "synflow"},
    "random, ERK densities": {"method": "random", "scope": "erk"},
    "magnitude": {"method": "magnitude"},
}
DENSE = "dense, narrower"
AXES = {
    "kept": "stored weights", "flops": "operations of a forward pass", "parameters": "parameters in memory",
    "train_seconds": "seconds of training",
}  # fmt: skip
# For each network compressions, and widths of dense ones whose weights and operations span the same range. VGG-11 is a
# chain, where `balanced` is SynFlow.
CHAIN = ("SynFlow", "random, ERK densities", "magnitude")
Grid = dict[str, tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]]
GRIDS: dict[str, Grid] = {
    "smoke": {"conv": (CHAIN, (10.0, 10**1.5), (0.125, 0.25))},
    "laptop": {
        "vgg11_bn": (CHAIN, (10**3.5, 10**3.0, 10**2.5), (0.03125, 0.0625, 0.125, 0.1875)),
        "resnet20": (tuple(SPARSE), (50.0, 20.0), (0.14, 0.23, 0.42)),
        "vit": (tuple(SPARSE), (10.0,), (0.3125, 0.5, 0.75)),
    },
    "paper": {
        "vgg11_bn": (
            CHAIN, (10**1.5, 10**2.0, 10**2.5, 10**3.0, 10**3.5), (0.03125, 0.0625, 0.125, 0.1875, 0.25, 0.375)
        ),
        "resnet20": (tuple(SPARSE), (100.0, 50.0, 20.0, 10.0), (0.14, 0.23, 0.33, 0.42, 0.6)),
        "vit": (tuple(SPARSE), (50.0, 20.0, 10.0), (0.25, 0.3125, 0.5, 0.75)),
    },
}  # fmt: skip


def configs(scale: str) -> list[Config]:
    """Sparse networks at several compressions and dense ones of several widths, seed by seed."""
    base = full_width_base(scale)
    seeds = (0,) if scale == "smoke" else (0, 1, 2)
    return unique(
        configured(base, model=model, **changes, seed=seed, **recipe_changes(model, scale))
        for model, (names, compressions, widths) in GRIDS[scale].items()
        for seed in seeds
        for changes in (
            *({"method": "dense", "width": width} for width in widths),
            *({**SPARSE[name], "compression": compression} for compression in compressions for name in names),
        )
    )


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
    """Accuracy against four costs, a row for each network; lines are Pareto fronts over compressions or widths."""
    del scale
    groups: dict[tuple[str, str, float], list[Mapping[str, Any]]] = {}
    for result in results:
        config = result["config"]
        name = label(config)
        size = config["width"] if name == DENSE else config["compression"]
        groups.setdefault((config["model"], name, size), []).append(result)
    table = [_row(*key, group) for key, group in groups.items()]
    models = list(dict.fromkeys(model for model, _, _ in groups))
    with canvas(len(models), len(AXES), width=3.3, height=3.2) as (figure, axes):
        for model, row in zip(models, axes, strict=True):
            for panel, (key, said) in zip(row, AXES.items(), strict=True):
                for colour, name in zip(PALETTE, (*SPARSE, DENSE), strict=False):
                    _curve(panel, [g for k, g in groups.items() if k[:2] == (model, name)], key, name, colour)
                panel.set(xlabel=said, ylabel="top-1 accuracy (%)")
                log_cost_axis(panel)
            row[0].set_title(NAMES.get(model, model))
            row[0].legend(fontsize=7)
        paths = save(figure, folder, "sceptic")
    notes = (
        "operations and parameters are those of the compact network, zeros inside its layers included",
        "bytes on disk follow the parameters: `save_compact` takes 4 bytes for each, one bit for each weight under a "
        "mask, and 20 to 40 kB for the structure",
        "seconds are of training and evaluation, not of pruning",
        "lines are Pareto fronts of means over seeds, dots are single runs, crosses those without a path; ± and bars "
        "are the 95% interval over test images, where there is one seed",
        NO_PATH,
    )
    return Drawing(tuple(paths), table, notes)


def _curve(panel: Any, found: list[list[Mapping[str, Any]]], key: str, name: str, colour: str) -> None:
    """Single runs as dots, those without a path as crosses, and the front of the means of the others over seeds."""
    for group in found:
        for result in group:
            cost, top1 = result["outcome"][key], result["outcome"]["top1"]
            panel.scatter(cost, top1, s=9, color=colour, alpha=0.5, marker="o" if _has_path(result) else "x")
        if len(group) == 1:
            panel.errorbar(cost, top1, half_width(top1, tested(group[0]["config"])), color=colour, capsize=2)
    means = [(_mean(group, key), _mean(group, "top1")) for group in found if all(map(_has_path, group))]
    if means:
        panel.plot(*zip(*front(means), strict=True), color=colour, marker="o", label=name)


def _has_path(result: Mapping[str, Any]) -> bool:
    return bool(result["outcome"].get("connected", True))


def _mean(group: list[Mapping[str, Any]], key: str) -> float:
    return sum(float(result["outcome"][key]) for result in group) / len(group)


def _row(model: str, name: str, size: float, group: list[Mapping[str, Any]]) -> dict[str, Any]:
    sized = f"width {size:g}" if name == DENSE else f"compression {size:,.0f}"
    dead = "" if all(map(_has_path, group)) else " †"
    row: dict[str, Any] = {"network": NAMES.get(model, model), "form": f"{name}, {sized}"}
    row["top-1 (%)"] = interval(group) + dead
    for key, said in AXES.items():
        row[said] = f"{_mean(group, key):,.0f}"
    return row
