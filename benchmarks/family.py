"""The family of scores and densities: layer counts against published ones, and what each score costs.

    python benchmarks/family.py counts PUBLISHED.csv --data-dir DIR     # ResNet-20 on CIFAR-10, three seeds
    python benchmarks/family.py cost

PUBLISHED.csv has the columns model, dataset, method, sparsity, seed, layer, weights, kept. Costs are seconds of
processor time on one thread, for one evaluation of a score.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict

import numpy as np
import torch

import synflow
from synflow.experiments.data import augment, load, normalise
from synflow.models.built_in import build

EXAMPLE = torch.zeros(1, 3, 32, 32)
SEEDS = range(3)
# Published method: our score and densities, and how many images in how many batches.
METHODS = {
    "synflow": ("synflow", "global", 0, 1), "snip": ("snip", "global", 128, 1), "grasp": ("grasp", "global", 250, 2),
    "prospr": ("prospr", "global", 512, 4), "uniform": ("random", "global", 0, 1), "erk": ("random", "erk", 0, 1),
    "er": ("random", "erk", 0, 1),
}  # fmt: skip


def published(path: str) -> dict[tuple[str, float], np.ndarray]:
    """Counts by method and sparsity: seeds by layers."""
    rows = defaultdict(list)
    with open(path) as file:
        for row in csv.DictReader(file):
            if (row["model"], row["dataset"]) == ("resnet20", "cifar10") and row["method"] in METHODS:
                rows[row["method"], float(row["sparsity"]), int(row["seed"])].append(int(row["kept"]))
    found = defaultdict(list)
    for (method, sparsity, _), counts in sorted(rows.items()):
        found[method, sparsity].append(counts)
    return {key: np.array(value, dtype=float) for key, value in found.items()}


def images(folder: str, number: int, batches: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Training images, augmented as for training, the same number of each class in all."""
    data, generator = load("cifar10", folder), torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.train_labels), generator=generator)
    if number % data.classes == 0:
        kept = [order[data.train_labels[order] == label][: number // data.classes] for label in range(data.classes)]
        order = torch.cat(kept)[torch.randperm(number, generator=generator)]
    order = order[:number]
    shown = normalise(augment(data.train_images[order], data.padding, data.flip, generator), data)
    return list(zip(shown.chunk(batches), data.train_labels[order].chunk(batches), strict=True))


def counts_of(method: str, totals: dict[float, np.ndarray], seed: int, folder: str | None) -> dict[float, np.ndarray]:
    """Our counts for each sparsity; as many weights in all as the published seed kept."""
    score, scope, number, batches = METHODS[method]
    torch.manual_seed(seed)
    model = build("resnet20")
    size = sum(weight.numel() for weight in synflow.prunable(model).values())
    data = images(folder, number, batches, seed) if number and folder else None
    found, scores = {}, None
    for sparsity, counts in totals.items():
        keep = int(counts[seed].sum())
        if score == "synflow":
            masks = dict(synflow.prune(model, EXAMPLE, density=keep / size, guard=False))
        else:
            scores = scores or synflow.score(model, EXAMPLE, score, data, seed=seed)
            ones = {name: torch.ones_like(each, dtype=torch.bool) for name, each in scores.items()}
            masks = synflow.SCOPES[scope](scores, ones, keep)
        found[sparsity] = np.array([float(mask.sum()) for mask in masks.values()])
    return found


def compare(options: argparse.Namespace) -> None:
    """One row per method and sparsity."""
    theirs = published(options.published)
    print("| method | here | sparsity | ranges that meet | largest difference | layer |\n|---|---|--:|--:|--:|---|")
    names = list(synflow.prunable(build("resnet20")))
    for method in options.method or METHODS:
        totals = {sparsity: counts for (name, sparsity), counts in theirs.items() if name == method}
        runs = [counts_of(method, totals, seed, options.data_dir) for seed in SEEDS]
        for sparsity, counts in totals.items():
            ours = np.array([run[sparsity] for run in runs])
            # Ranges of three seeds, each widened by the deviation of a count.
            noise = np.sqrt(np.maximum(counts.mean(0), 1))
            gap = np.maximum(ours.min(0) - counts.max(0), counts.min(0) - ours.max(0)) / noise
            off = (ours.mean(0) - counts.mean(0)) / np.maximum(counts.mean(0), 1)
            worst = int(np.abs(off * noise).argmax())
            here = " ".join(METHODS[method][:2])
            print(
                f"| {method} | {here} | {sparsity} | {int((gap <= 2).sum())} of {len(names)} | "
                f"{counts.mean(0)[worst]:.0f} -> {ours.mean(0)[worst]:.0f} | {names[worst]} |", flush=True,
            )  # fmt: skip


def cost(options: argparse.Namespace) -> None:
    """Seconds per evaluation; 100 images for the scores that read data."""
    torch.set_num_threads(1)
    data = [(torch.randn(100, 3, 32, 32), torch.randint(10, (100,)))]
    print("| score | " + " | ".join(options.model) + " |\n|---|" + "--:|" * len(options.model))
    for score in options.score or synflow.SCORES:
        cells = []
        for name in options.model:
            torch.manual_seed(0)
            model = build(name)
            started = time.process_time()
            synflow.score(model, EXAMPLE, score, data)
            cells.append(f"{time.process_time() - started:.2f}")
        print(f"| {score} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    counts = commands.add_parser("counts")
    counts.add_argument("published")
    counts.add_argument("--data-dir", help="the folder that holds CIFAR-10")
    counts.add_argument("--method", nargs="*", choices=METHODS)
    counts.set_defaults(run=compare)
    times = commands.add_parser("cost")
    times.add_argument("--model", nargs="*", default=["resnet20", "vgg11_bn"])
    times.add_argument("--score", nargs="*", choices=sorted(synflow.SCORES))
    times.set_defaults(run=cost)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
