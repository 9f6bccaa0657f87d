"""A network at initialisation under one score: weights kept per layer, scores per unit (figures 2 to 4)."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import synflow

from ..configs import Config, reads_data
from ..data import scoring_batches
from ..methods import data_of, example_of, make_model, score_of
from ..runs import Run

__all__ = ["EXPONENTS", "layers"]

# The paper's compressions, as powers of ten.
EXPONENTS = tuple(step / 2 for step in range(13))


def layers(run: Run) -> dict[str, Any]:
    """Weights kept per layer, scores per unit and per layer.

    A single-shot score is evaluated once and cut off at each of the paper's 13 compressions. An iterative one is run
    for the config's compression alone; at compression 1 that is its score of the whole network.
    """
    config = run.config
    model, example = make_model(config), example_of(config)
    weights = synflow.prunable(model)
    sizes = {name: weight.numel() for name, weight in weights.items()}
    total = sum(sizes.values())
    limit = math.log10(synflow.max_compression(model, example))
    about = {"sizes": sizes, "log10_max_compression": limit, "images": 0}
    started = time.perf_counter()
    if config.method.startswith("synflow") and config.compression > 1:
        masks = synflow.prune(
            model, example, compression=config.compression, score=config.method, steps=config.steps or 100,
            guard=None if config.guard else False,
        )  # fmt: skip
        kept = {_exponent(config): {name: int(mask.sum()) for name, mask in masks.items()}}
        largest = max((step.pruned_fraction or 0.0 for step in masks.steps), default=0.0)
        return {
            **about, "kept": kept, "largest_ratio": largest, "prune_seconds": time.perf_counter() - started,
            "substeps": sum(step.substeps for step in masks.steps),
        }  # fmt: skip
    scores, signed, images = _scores(config, model, run.context.data_dir)
    seconds = time.perf_counter() - started
    found: dict[str, Any] = {**about, "images": images, "prune_seconds": seconds}
    if not config.method.startswith("synflow"):
        everything = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
        found["kept"] = {}
        for exponent in EXPONENTS:
            masks_at = synflow.SCOPES["global"](scores, everything, max(1, round(total / 10**exponent)))
            found["kept"][str(exponent)] = {name: int(mask.sum()) for name, mask in masks_at.items()}
    flows = _unit_flows(model, scores)
    found |= {"inflow": flows[0], "outflow": flows[1]}
    found["mean_score"] = {name: float(score.double().mean()) for name, score in scores.items()}
    found["sum_signed"] = {name: float(score.double().sum()) for name, score in signed.items()}
    flows = _unit_flows(model, signed)
    if signed is not scores:
        found |= {"signed_inflow": flows[0], "signed_outflow": flows[1]}
    inflow, outflow = (torch.tensor(side, dtype=torch.float64) for side in flows)
    found["unit_residual"] = float((inflow - outflow).abs().max() / inflow.abs().max())
    return found


def _exponent(config: Config) -> str:
    return str(round(math.log10(config.compression), 6))


def _scores(config: Config, model: nn.Module, data_dir: str | None) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Scores, the same before an absolute value was taken (to which the conservation laws apply), and images used."""
    example, batches = example_of(config), None
    if reads_data(config.method):
        data = data_of(config, data_dir)
        size = 256 if max(data.shape) <= 64 else 8
        number = config.images or config.images_per_class * data.classes
        batches = scoring_batches(data, number, size=size, seed=config.seed)
    images = 0 if batches is None else sum(len(labels) for _, labels in batches)
    if config.method == "snip" and config.scoring == "train":
        signed = synflow.score(model, example, "skeletonization", batches, seed=config.seed)
        return {name: score.abs() for name, score in signed.items()}, signed, images
    scores = synflow.score(model, example, score_of(config), batches, seed=config.seed)
    return scores, scores, images


def _unit_flows(model: nn.Module, scores: dict[str, Tensor]) -> tuple[list[float], list[float]]:
    """Sums of the scores into and out of each unit between two convolutions that follow each other."""
    inflow: list[float] = []
    outflow: list[float] = []
    convolutions = [name for name, weight in synflow.prunable(model).items() if weight.dim() == 4]
    for name, after in pairwise(convolutions):
        if scores[name].shape[0] == scores[after].shape[1]:
            inflow += scores[name].double().sum((1, 2, 3)).tolist()
            outflow += scores[after].double().sum((0, 2, 3)).tolist()
    return inflow, outflow
