"""The authors' own numbers, to draw beside ours."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from importlib.resources import files
from statistics import fmean
from typing import Any

__all__ = ["accuracy", "critical_log10", "imp_accuracy"]


def _rows(name: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(files(__package__).joinpath(name).read_text().splitlines())


def accuracy(model: str, dataset: str, method: str) -> list[tuple[float, float, float, float]]:
    """Log10 of compression, mean, least and largest top-1 of the authors' three runs; empty where there are none.

    >>> [round(number, 2) for number in accuracy("vgg16", "cifar100", "synflow")[0]]
    [0.0, 72.9, 72.79, 73.06]
    """
    found: dict[float, list[float]] = {}
    for row in _rows("accuracy.csv"):
        if (row["model"], row["dataset"], row["method"]) == (model, dataset, method):
            found.setdefault(float(row["log10_compression"]), []).append(float(row["top1"]))
    return [(exponent, fmean(runs), min(runs), max(runs)) for exponent, runs in sorted(found.items())]


def imp_accuracy(rounds: int) -> list[tuple[float, float]]:
    """Log10 of compression and top-1 of iterative magnitude pruning, VGG-11 on CIFAR-10."""
    return [
        (float(row["log10_compression"]), float(row["top1"]))
        for row in _rows("imp_vgg11_cifar10.csv")
        if int(row["iterations"]) == rounds
    ]


def critical_log10() -> dict[str, list[float]]:
    """Log10 of the largest compression on a grid of 0.25 at which no layer is empty: VGG-16, CIFAR-100, three runs."""
    content: dict[str, Any] = json.loads(files(__package__).joinpath("critical_compression.json").read_text())
    runs: dict[str, list[float]] = content["log10_critical_compression_per_run_grid_0.25"]
    return {name.split(" ")[0]: values for name, values in runs.items()}
