"""The picture of the README: when does each method lose a whole layer of a VGG-16?

python tools/collapse_figure.py --out docs/images/collapse.png
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

import synflow
from synflow.experiments import models

EXAMPLE = torch.ones(1, 3, 32, 32)
# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = {"random": "#999999", "magnitude": "#E69F00", "synflow": "#0072B2"}


def emptiest(masks: Mapping[str, Tensor]) -> int:
    """Weights left in the layer that has the fewest."""
    return min(int(mask.sum()) for mask in masks.values())


def single_shot(model: torch.nn.Module, score: str, most: float) -> list[tuple[float, int]]:
    """Compression and emptiest layer, to the first collapse."""
    curve = []
    for quarter in range(25):
        compression = 10 ** (quarter / 4)
        if compression > most:
            break
        left = emptiest(synflow.prune(model, EXAMPLE, compression=compression, score=score))
        curve.append((compression, left))
        if left == 0:
            break
    return curve


def certified(model: torch.nn.Module, most: float) -> list[tuple[float, int]]:
    """The same along one certified run to the maximum."""
    steps = synflow.iterate(model, EXAMPLE, compression=most, schedule="certified", margin=0.9, progress=True)
    whole = min(weight.numel() for weight in synflow.prunable(model).values())
    return [(1.0, whole)] + [(1 / s.density, emptiest(s.masks)) for s in steps]


def draw(curves: Mapping[str, list[tuple[float, int]]], most: float, path: Path) -> None:
    """Draw the curves and replace the file at once."""
    figure, axes = plt.subplots(figsize=(7.2, 3.4), dpi=160, layout="constrained")
    for name, curve in curves.items():
        alive = [(x, y) for x, y in curve if y > 0]
        axes.plot(*zip(*alive, strict=True), color=COLOURS[name], linewidth=2.2, label=name)
        if len(alive) < len(curve):
            axes.plot(alive[-1][0], alive[-1][1], marker="x", markersize=10, markeredgewidth=2.5, color=COLOURS[name])
    axes.axvline(most, color="black", linestyle=":", linewidth=1.2)
    axes.annotate("max\ncompression", (most, 300), textcoords="offset points", xytext=(-6, 0), ha="right", fontsize=8)
    axes.set(xscale="log", yscale="log", ylim=(0.7, None))
    axes.set_xlabel("compression (VGG-16 with batch norm, 14,761,664 weights, at initialisation)")
    axes.set_ylabel("weights in the\nemptiest layer")
    axes.set_title("x: a whole layer is lost. SynFlow keeps a path to the last weight of each layer.", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    figure.savefig(temporary, format="png")
    os.replace(temporary, path)


def main() -> None:
    """Prune and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/collapse.png"), help="where to write the picture")
    parser.add_argument("--model", default="vgg16_bn", help="a model of synflow.experiments (default: vgg16_bn)")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = models.build(options.model, classes=100)
    most = synflow.max_compression(model, EXAMPLE)
    curves = {score: single_shot(model, score, most) for score in ("random", "magnitude")}
    curves["synflow"] = certified(model, most)
    draw(curves, most, options.out)
    for name, curve in curves.items():
        last = max(x for x, y in curve if y > 0)
        print(f"{name:10} keeps every layer up to {last:,.0f}x")


if __name__ == "__main__":
    main()
