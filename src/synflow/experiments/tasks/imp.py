"""Iterative magnitude pruning: train, prune, put the weights back, and again (figure 5a)."""

from __future__ import annotations

from typing import Any

import torch

import synflow

from ..methods import data_of, example_of, make_model
from ..runs import Run
from ..training import evaluate, train_epochs

__all__ = ["imp"]


def imp(run: Run) -> dict[str, Any]:
    """Accuracy and layer densities after `rounds` of training and pruning to the config's compression in equal factors.

    With `rewind` the weights that are left return to their initial values before each training, as in the lottery
    ticket papers. The published figure was made without: each round went on with the trained weights.
    """
    config, context = run.config, run.context
    data, example = data_of(config, context.data_dir), example_of(config)
    model = make_model(config)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = run.load_checkpoint()
    done = int(state["round"]) if state else 0
    if state:
        synflow.attach(model, state["masks"])
        model.load_state_dict(state["model"])
    run.keep_metrics(done)
    # Round 0 .. rounds - 1 train and prune, the last training measures the final network.
    for number in range(done, config.rounds + 1):
        for _ in train_epochs(
            model, data, config.recipe, seed=config.seed + 7919 * number, device=context.device, compile=context.compile
        ):
            pass
        tested = evaluate(model, data, device=context.device)
        masks = synflow.attached(model)
        run.record({"epoch": number, "density": synflow.density(masks), "top1": tested["top1"], "seconds": 0.0})
        if number == config.rounds:
            break
        model.cpu()
        pruned = synflow.prune(
            model, example, density=config.compression ** (-(number + 1) / config.rounds), score="magnitude",
            masks=masks or None,
        )  # fmt: skip
        synflow.attach(model, pruned)
        if config.rewind:
            synflow.rewind(model, initial)
        run.save_checkpoint({"round": number + 1, "masks": dict(pruned), "model": model.state_dict()})
    final = synflow.attached(model)
    return {
        "top1": tested["top1"], "top5": tested["top5"], "density": synflow.density(final),
        "layers": {name: int(mask.sum()) for name, mask in final.items()},
        "empty_layers": sum(not bool(torch.any(mask)) for mask in final.values()),
        "rounds": [{"density": line["density"], "top1": line["top1"]} for line in run.metrics()],
    }  # fmt: skip
