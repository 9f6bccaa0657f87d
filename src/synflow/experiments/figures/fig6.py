"""Figure 6: five methods, from no compression to a thousandfold, on pairs of networks and data sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..configs import Config
from ..published import accuracy
from ..recipes import paper_recipe
from .accuracy import Results, accuracy_rows, draw_panel, methods_grid, notes_on
from .drawing import Drawing
from .small import training_base
from .style import METHODS, canvas, save

__all__ = ["configs", "draw"]

PAIRS = tuple(
    (model, dataset)
    for dataset in ("cifar10", "cifar100", "tiny-imagenet")
    for model in ("vgg11_bn", "vgg16_bn", "resnet18", "wide_resnet18")
)
EXPONENTS = tuple(step / 4 for step in range(13))
# What two cores can do in some hours: narrower networks, a few epochs on part of the training images.
LAPTOP = (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)


def configs(scale: str) -> list[Config]:
    """The runs of a scale; `paper` is the paper's full setting with the rates the authors really used."""
    if scale == "smoke":
        small = training_base(scale)
        return methods_grid(small, (0.0, 1.0, 2.0), (0, 1))
    if scale == "laptop":
        vgg = training_base(scale)
        resnet = replace(vgg, model="resnet20", width=1.0)
        return methods_grid(vgg, LAPTOP, (0, 1, 2)) + methods_grid(resnet, LAPTOP[:2] + LAPTOP[3:], (0, 1, 2))
    return [
        config
        for model, dataset in PAIRS
        for config in methods_grid(
            Config(model=model, dataset=dataset, recipe=paper_recipe(model, dataset, published=True)),
            EXPONENTS, (0, 1, 2),
        )
    ]  # fmt: skip


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """A panel for each pair; open markers are the authors' published means."""
    pairs = list(dict.fromkeys((r["config"]["model"], r["config"]["dataset"], r["config"]["width"]) for r in results))
    columns = min(4, len(pairs))
    rows = -(-len(pairs) // columns)
    table: list[dict[str, Any]] = []
    with canvas(rows, columns) as (figure, axes):
        for place, (model, dataset, width) in enumerate(pairs):
            part = [r for r in results if (r["config"]["model"], r["config"]["dataset"]) == (model, dataset)]
            published = theirs(model, dataset) if scale == "paper" else {}
            panel = axes[place // columns][place % columns]
            draw_panel(panel, part, published)
            name = model if width == 1 else f"{model} at {width:g} of its width"
            panel.set_title(f"{name}, {dataset}")
            table += [{"network": name, "data": dataset, **row} for row in accuracy_rows(part, published)]
        for place in range(len(pairs), rows * columns):
            axes[place // columns][place % columns].set_visible(False)
        axes[0][0].legend(fontsize=8)
        paths = save(figure, folder, "fig6")
    return Drawing(tuple(paths), table, notes_on(results))


def theirs(model: str, dataset: str) -> Mapping[str, list[tuple[float, float, float, float]]]:
    """The authors' curves for one of our names."""
    return {method: accuracy(model.removesuffix("_bn"), dataset, method) for method in METHODS}
