"""What a score costs: passes over the network and seconds, measured."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

import synflow

from ..configs import reads_data
from ..data import scoring_batches
from ..methods import data_of, example_of, make_model, score_of
from ..runs import Run

__all__ = ["cost"]


def cost(run: Run) -> dict[str, Any]:
    """Forward and backward passes of all steps of a method, and the time they took.

    Passes of a loss are counted on the network itself. Those of the flow are replayed below the network, so the
    engine counts them: a forward pass per measurement, a backward pass for each that a step is decided by.
    """
    config = run.config
    model, example = make_model(config), example_of(config)
    batches = None
    if reads_data(config.method):
        data = data_of(config, run.context.data_dir)
        batches = scoring_batches(data, config.images_per_class * data.classes, seed=config.seed)
    counts = {"forward": 0, "backward": 0, "examples": 0}
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))

    def forward(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        counts["forward"] += 1
        counts["examples"] += len(inputs[0])
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(backward)

    def backward(_: torch.Tensor) -> None:
        counts["backward"] += 1

    handle = first.register_forward_hook(forward)
    started = time.perf_counter()
    masks = synflow.prune(
        model, example, compression=config.compression, score=score_of(config), steps=config.steps,
        schedule=config.schedule, guard=False, data=batches, seed=config.seed,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    handle.remove()
    if "measurements" in masks.about:
        measured = int(masks.about["measurements"])
        counts = {"forward": measured, "backward": sum(step.substeps for step in masks.steps), "examples": measured}
    return {"steps": len(masks.steps), "images": 0 if batches is None else sum(len(y) for _, y in batches),
            "prune_seconds": seconds, **counts}  # fmt: skip
