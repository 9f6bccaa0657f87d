"""All stored runs as one page: filters, accuracy against a cost, published curves behind, and what each run is."""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from .figures.style import COLOURS, METHODS, PALETTE
from .figures.uncertainty import half_width, tested
from .published import accuracy
from .recipes import paper_recipe
from .results import Row
from .sealed_json import write_drawing

__all__ = ["page_of", "write_page"]

FIELDS = (
    "run", "task", "model", "dataset", "method", "compression", "width", "seed", "train_per_class", "test_per_class",
    "epochs", "ablation", "schedule", "top1", "kept", "parameters", "flops", "train_seconds", "command", "commit",
)  # fmt: skip
# What the menus choose by, and how they call it.
FILTERS = {
    "model": "model", "dataset": "dataset", "method": "method", "compression": "compression", "width": "width",
    "train_per_class": "images per class", "epochs": "epochs", "ablation": "ablation",
}  # fmt: skip
# Black on white and white on black.
BY_THEME = {"dense": "currentColor"}


def page_of(rows: Sequence[Row]) -> str:
    """One self-contained HTML page; runs without an accuracy are left out, and their number is said."""
    shown = [{name: row.get(name) for name in FIELDS} for row in rows if isinstance(row.get("top1"), int | float)]
    for run in shown:
        run["sure"] = round(half_width(run["top1"] or 0.0, tested(run)), 2)
    methods = sorted({str(run["method"]) for run in shown})
    spare = itertools.cycle(colour for colour in PALETTE if colour not in {COLOURS.get(name) for name in methods})
    colours = {name: COLOURS.get(name) or next(spare) for name in methods} | BY_THEME
    content = {"runs": shown, "ghosts": _ghosts(rows), "filters": FILTERS, "colours": {**COLOURS, **colours}}
    legend = " ".join(
        f'<span class="key"><b style="color:{colours[name]}">&#9679;</b> {html.escape(name)}</span>' for name in methods
    )
    data = json.dumps(content).replace("<", "\\u003c")  # nothing in the data ends the script element
    left = len(rows) - len(shown)
    note = f"{len(shown)} run{'s' * (len(shown) != 1)}" + (f", {left} without an accuracy are left out" if left else "")
    here = files(__package__).joinpath("assets")
    return (
        here.joinpath("results.html").read_text(encoding="utf-8").replace("__NOTE__", html.escape(note))
        .replace("__LEGEND__", legend)
        .replace("__DATA__", data).replace("__SCRIPT__", here.joinpath("results.js").read_text(encoding="utf-8"))
    )  # fmt: skip


def write_page(rows: Sequence[Row], path: Path) -> None:
    """Write the page atomically."""
    write_drawing(path, page_of(rows).encode())


def _ghosts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The authors' means against weights, for the networks among the runs at full width."""
    totals = {(r["model"], r["dataset"]): r["total"] for r in rows if r.get("total") and r.get("width") == 1}
    return [
        {
            "model": model,
            "dataset": dataset,
            "method": method,
            "kept": total / 10**x,
            "top1": mean,
            "compression": 10**x,
            "width": 1.0,
            "epochs": paper_recipe(str(model), str(dataset), published=True).epochs,
            "train_per_class": None,
            "ablation": "none",
        }
        for (model, dataset), total in totals.items()
        for method in METHODS
        for x, mean, _, _ in accuracy(str(model).removesuffix("_bn"), str(dataset), method)
    ]
