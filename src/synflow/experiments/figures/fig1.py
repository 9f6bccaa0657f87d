"""Figure 1: accuracy against compression with critical and maximum compression; published: VGG-16 on CIFAR-100."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import synflow

from ..configs import Config, from_dict
from ..methods import example_of, make_model
from ..published import critical_log10
from ..recipes import paper_recipe
from .accuracy import Results, accuracy_rows, draw_panel, methods_grid, notes_on
from .drawing import Drawing
from .fig6 import theirs
from .small import training_base
from .style import LABELS, METHODS, canvas, save

__all__ = ["configs", "critical", "draw"]

EXPONENTS = tuple(step / 4 for step in range(25))


def configs(scale: str) -> list[Config]:
    """Five methods; at paper scale to a millionfold compression, three seeds, the authors' real learning rate."""
    if scale == "smoke":
        small = training_base(scale)
        return methods_grid(small, (0.0, 1.0, 2.0), (0, 1))
    if scale == "laptop":
        small = training_base(scale)
        return methods_grid(small, (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0), (0, 1, 2))
    recipe = paper_recipe("vgg16_bn", "cifar100", published=True)
    return methods_grid(Config(model="vgg16_bn", dataset="cifar100", recipe=recipe), EXPONENTS, (0, 1, 2))


def critical(results: Results) -> dict[str, float]:
    """Log10 of the largest compression on the grid at which no run of a method had lost a layer."""
    found = {}
    for method in METHODS:
        runs = [r for r in results if r["config"]["method"] in (method, "dense")]
        lost = [r["config"]["compression"] for r in runs if r["outcome"]["empty_layers"]]
        whole = [r["config"]["compression"] for r in runs if not r["outcome"]["empty_layers"]]
        below = [c for c in whole if not lost or c < min(lost)]
        if below:
            found[method] = math.log10(max(below))
    return found


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """One panel; open markers are the authors' means, arrows point at critical compressions."""
    first = replace(from_dict(results[0]["config"]), task="train")
    most = math.log10(synflow.max_compression(make_model(first), example_of(first)))
    arrows = critical(results)
    published = theirs("vgg16", "cifar100") if scale == "paper" else {}
    with canvas(width=5.6, height=3.8) as (figure, axes):
        panel = axes[0][0]
        draw_panel(panel, results, published, most, arrows)
        name = first.model if first.width == 1 else f"{first.model} at {first.width:g} of its width"
        panel.set_title(f"{name}, {first.dataset}: arrows at critical compression")
        panel.legend(fontsize=8)
        paths = save(figure, folder, "fig1")
    largest = math.log10(max(r["config"]["compression"] for r in results))
    notes = [
        *notes_on(results),
        "critical compression: the largest on this grid at which no run had lost a layer",
    ]
    notes += [
        f"critical compression of {LABELS[method]}: {'at least ' if x == largest else ''}10^{x:.2f}"
        + (f", published 10^{fmean(critical_log10()[method]):.2f}" if scale == "paper" else "")
        for method, x in arrows.items()
    ]
    return Drawing(tuple(paths), accuracy_rows(results, published), (*notes, f"maximum compression: 10^{most:.2f}"))
