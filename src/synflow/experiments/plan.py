"""What an experiment will take, before it starts: runs, operations, hours, disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from ..network.flops import flops as count_flops
from .configs import Config, reads_data
from .data import SHAPES, SIZES
from .methods import network_of

__all__ = ["Estimate", "cpu_speed", "duration", "estimate"]

# What such networks sustain on one current data-centre GPU in float32, far below its peak.
GPU_FLOPS = 8e12
# Seconds that a run takes beside its operations: building, pruning, certifying, writing.
EACH_RUN = 0.3
# Seconds that a training step of a small network takes, which does not keep the cores busy.
EACH_STEP = 2e-3
# A step of SynFlow reads and writes every weight a few times beside its one forward and backward pass.
BYTES_PER_WEIGHT_AND_STEP = 60


@dataclass(frozen=True)
class Estimate:
    """Totals of a list of runs; operations are multiplications and additions, an upper bound for compact training."""

    runs: int
    operations: float
    disk: int
    steps: float

    def hours(self, speed: float) -> float:
        """Hours at `speed` operations per second."""
        return self.operations / speed / 3600


def duration(found: Estimate) -> str:
    """How long runs take here, one after the other, in words."""
    seconds = found.runs * EACH_RUN + found.steps * EACH_STEP + found.operations / cpu_speed()
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} on this machine, one run at a time"
    return f"{seconds:.0f} s on this machine, one run at a time"


def estimate(configs: Sequence[Config]) -> Estimate:
    """Add up what the runs will take; nothing is built, only shapes are."""
    return Estimate(len(configs), sum(map(_operations, configs)), sum(map(_disk, configs)), sum(map(_steps, configs)))


@lru_cache(maxsize=64)
def _size(model: str, width: float, dataset: str) -> tuple[int, int, int]:
    """Operations of a forward pass, prunable weights, all parameters."""
    shape = SHAPES[dataset][1]
    with torch.device("meta"):
        network = network_of(model, dataset, width)
        flops = count_flops(network, torch.ones(1, *shape))
    layers = [m.weight.numel() for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return flops, sum(layers), sum(p.numel() for p in network.parameters())


def _operations(config: Config) -> float:
    forward, weights, _ = _size(config.model, config.width, config.dataset)
    classes = SHAPES[config.dataset][0]
    train, test = _images(config)
    recipe = config.recipe
    # A training step is a forward pass and a backward pass of twice its cost.
    trained = recipe.epochs * (3 * train + test / recipe.evaluate_every) * forward
    steps = config.steps or (100 if config.method.startswith("synflow") else 1)
    images = (config.images or config.images_per_class * classes) if reads_data(config.method) else 1
    per_step = {"grasp": 12, "snip": 3, "synflow": 3}.get(config.method, 0) * forward * images
    pruned = steps * (per_step + BYTES_PER_WEIGHT_AND_STEP * weights)
    return {
        "train": trained + pruned,
        "imp": (config.rounds + 1) * trained,
        "magnitudes": trained,
        "timing": 2 * trained + pruned,
    }.get(config.task, pruned)


def _images(config: Config) -> tuple[int, int]:
    """Images of an epoch, and of a test."""
    classes = SHAPES[config.dataset][0]
    given = (config.train_per_class, config.test_per_class)
    train, test = (each * classes if each else all_ for each, all_ in zip(given, SIZES[config.dataset], strict=True))
    return train, test


def _steps(config: Config) -> float:
    """Training steps."""
    rounds = {"train": 1, "magnitudes": 1, "timing": 2, "imp": config.rounds + 1}.get(config.task, 0)
    return rounds * config.recipe.epochs * -(-_images(config)[0] // config.recipe.batch_size)


def _disk(config: Config) -> int:
    _, weights, parameters = _size(config.model, config.width, config.dataset)
    lines = 400 * config.recipe.epochs + 20_000
    if config.task in ("train", "imp"):
        # A bit per weight for good; a checkpoint with momentum while it runs.
        return weights // 8 + lines + (8 * parameters if config.recipe.epochs > 1 else 0)
    return lines


def cpu_speed(seconds: float = 0.5) -> float:
    """Operations per second that this machine sustains in convolutions, measured on the spot.

    The fastest of many short rounds: other programs interrupt most of them on a busy machine.
    """
    layer, images = nn.Conv2d(64, 64, 3, padding=1), torch.randn(4, 64, 32, 32)
    each = count_flops(layer, images)
    with torch.no_grad():
        layer(images)
        start = now = time.perf_counter()
        fastest = float("inf")
        while now - start < seconds:
            layer(images)
            before, now = now, time.perf_counter()
            fastest = min(fastest, now - before)
    # Whole networks reach about half of what a well-shaped convolution alone does.
    return each / fastest / 2
