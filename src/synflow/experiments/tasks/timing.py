"""Compact against masked training: the same accuracy, and how much sooner."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..methods import data_of, make_masks, make_model, trainable
from ..runs import Run
from ..training import train_epochs

__all__ = ["timing"]


def timing(run: Run) -> dict[str, Any]:
    """Train one pruned network masked and compact, epoch by epoch in turns so that noise hits both."""
    config, context = run.config, run.context
    data = data_of(config, context.data_dir)
    masks = make_masks(config, make_model(config), context.data_dir)
    found: dict[str, Any] = {}
    loops = {}
    for name, compact in (("masked", False), ("compact", True)):
        ready = trainable(dataclasses.replace(config, compact=compact), masks)
        loops[name] = train_epochs(ready.model, data, config.recipe, seed=config.seed, device=context.device)
        found[name] = {"flops": ready.about["flops"], "parameters": ready.about["parameters"], "seconds": []}
    for number in range(config.recipe.epochs):
        # Who goes first alternates.
        for name in sorted(loops, reverse=bool(number % 2)):
            epoch, _ = next(loops[name])
            found[name]["seconds"].append(epoch.seconds)
            found[name] |= {"top1": epoch.top1, "train_loss": epoch.train_loss}
    return found
