"""The figure of a sweep of one's own: a result against a setting, a curve for each combination of the others."""

from __future__ import annotations

import io
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError

from ..sealed_json import write_drawing
from ..summaries import varying
from .style import PALETTE, band, canvas

__all__ = ["draw_own"]

KINDS = (".svg", ".png", ".pdf")
# More curves than this cannot be told apart.
MOST_CURVES = 20
# An axis over more than this ratio is logarithmic.
WIDE = 15


def draw_own(rows: Sequence[dict[str, Any]], path: Path, x: str | None = None, y: str = "top1") -> None:
    """Draw means over seeds, with a band from the least to the largest, and write them as SVG, PNG or PDF."""
    if path.suffix not in KINDS:
        raise SynflowError(f"{path}: a figure is a {', '.join(KINDS)} file")
    rows = [row for row in rows if _number(row.get(y))]
    if not rows:
        raise SynflowError(f"no run has a number {y!r}; choose another result with --y")
    names = varying(rows)
    x = x or next((n for n in ("compression", *names) if n in names and all(_number(row.get(n)) for row in rows)), None)
    if x is None or not all(_number(row.get(x)) for row in rows):
        raise SynflowError(
            f"a figure needs a setting of numbers that varies, got {x or 'none'}; these vary: {', '.join(names) or '-'}"
        )
    others = [name for name in names if name != x]
    curves: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        label = ", ".join(f"{row[n]}" if n in ("method", "model", "dataset") else f"{n} {row[n]}" for n in others)
        curves.setdefault(label, {}).setdefault(float(row[x]), []).append(float(row[y]))
    if len(curves) > MOST_CURVES:
        raise SynflowError(f"{len(curves)} curves cannot be told apart; give conditions such as method=synflow")
    with canvas(width=4.8, height=3.4) as (figure, axes):
        panel = axes[0][0]
        for colour, (label, curve) in zip(itertools.cycle(PALETTE), sorted(curves.items()), strict=False):
            points = [(a, statistics.fmean(b), min(b), max(b)) for a, b in sorted(curve.items())]
            band(panel, points, color=colour, marker="o", label=label or None)
        places = sorted({place for curve in curves.values() for place in curve})
        if places[0] > 0 and places[-1] / places[0] > WIDE:
            panel.set_xscale("log")
        panel.set(xlabel=x, ylabel="top-1 accuracy (%)" if y == "top1" else y)
        if others:
            panel.legend(fontsize=8)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], dpi=170)
    write_drawing(path, buffer.getvalue())


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
