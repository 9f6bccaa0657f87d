"""Variations on one network: a curve each, over compression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..configs import Config, configured
from ..sweeps import unique
from .accuracy import Results, notes_on, points
from .drawing import Drawing
from .small import training_base
from .style import PALETTE, band, canvas, log_axis, save

__all__ = ["draw_curves", "variation_configs"]

Variations = Mapping[str, Mapping[str, Any]]


def exponents(scale: str) -> tuple[float, ...]:
    """Powers of ten of a scale."""
    return {"smoke": (1.0, 2.0), "laptop": (1.0, 2.0, 3.0)}.get(scale, tuple(step / 4 for step in range(1, 13)))


def seeds(scale: str) -> tuple[int, ...]:
    """Seeds of a scale."""
    return (0,) if scale == "smoke" else (0, 1, 2)


def variation_configs(scale: str, variations: Variations) -> list[Config]:
    """Every variation at every compression for every seed."""
    return unique(
        configured(training_base(scale), **changes, compression=10**exponent, seed=seed)
        for seed in seeds(scale)
        for changes in variations.values()
        for exponent in exponents(scale)
    )


def draw_curves(
    results: Results,
    folder: Path,
    name: str,
    title: str,
    chosen: Mapping[str, Callable[[Mapping[str, Any]], bool]],
    keys: Sequence[tuple[str, str]] = (("top1", "top-1 accuracy (%)"),),
) -> Drawing:
    """A panel for each key of the outcome, a curve for each label; the label's function says which configs are its."""
    table: dict[str, dict[str, Any]] = {}
    with canvas(1, len(keys), width=4.2 if len(keys) == 1 else 3.4, height=3.2) as (figure, axes):
        for panel, (key, label) in zip(axes[0], keys, strict=True):
            for colour, (curve, mine) in zip(itertools.cycle(PALETTE), chosen.items(), strict=False):
                found = points(results, mine, key)
                cut = {x for x, *_ in points([r for r in results if r["outcome"].get("connected") is False], mine, key)}
                band(panel, found, color=colour, marker="o", label=curve)
                for x, mean, low, high in found:
                    row = table.setdefault(f"{curve}/{x}", {"variation": curve, "compression": f"10^{x:g}"})
                    spread = "" if low == high else f" ({low:.2f} to {high:.2f})"
                    row[label] = f"{mean:.2f}{spread}" + " †" * (x in cut)
            most = max((math.log10(r["config"]["compression"]) for r in results), default=1.0)
            log_axis(panel, 0, math.ceil(most))
            panel.set(xlabel="compression", ylabel=label)
        axes[0][0].set_title(title)
        axes[0][-1].legend(fontsize=8)
        paths = save(figure, folder, name)
    return Drawing(tuple(paths), list(table.values()), notes_on(results))
