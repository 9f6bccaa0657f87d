"""Prune at initialisation, then train: figures 1 and 6, iterative SNIP, ablations, margins, the sceptic's question."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import nn

import synflow
from synflow.errors import SynflowError

from ..methods import data_of, example_of, make_masks, make_model, trainable
from ..runs import Run
from ..sealed_json import read_json, write_json
from ..training import train_epochs

__all__ = ["train", "train_from_checkpoint"]

UNPRUNED = ("dense", "narrow_flops", "narrow_weights")


def train(run: Run) -> dict[str, Any]:
    """Accuracy of one pruned and trained network, and what its masks are like."""
    data_of(run.config, run.context.data_dir)  # missing files are told before minutes of pruning
    masks, about = _masks(run)
    ready = trainable(run.config, masks)
    history = train_from_checkpoint(run, ready.model)
    last = history[-1] if history else {}
    return {
        **about, **ready.about,
        **{key: last.get(key) for key in ("top1", "top5", "test_loss", "train_loss")},
        "best_top1": max((line["top1"] for line in history if line["top1"] is not None), default=None),
        "train_seconds": sum(line["seconds"] for line in history), "epochs": len(history),
    }  # fmt: skip


def _masks(run: Run) -> tuple[synflow.Masks | None, dict[str, Any]]:
    """The run's masks: made once, then read from its folder."""
    config = run.config
    if config.method in UNPRUNED:
        total = sum(weight.numel() for weight in synflow.prunable(make_model(config)).values())
        return None, {
            "kept": total,
            "total": total,
            "connected": True,
            "empty_layers": 0,
            "dead_layers": 0,
            "prune_seconds": 0.0,
        }
    model, file, paper = make_model(config), run.folder / "masks.safetensors", run.folder / "certificate.json"
    masks = None
    # Masks are a function of the config: if anything is damaged they are simply made again.
    with suppress(SynflowError):
        certificate = read_json(paper)
        masks = synflow.load_masks(file, model)
    if masks is None:
        started = time.perf_counter()
        masks = make_masks(config, model, run.context.data_dir)
        seconds = time.perf_counter() - started
        certificate = _plain(synflow.certify(model, masks, example_of(config)).as_dict()) | {"prune_seconds": seconds}
        # The masks last: where they are, the certificate is.
        write_json(paper, certificate)
        synflow.save_masks(masks, file)
    return masks, {
        **{key: certificate[key] for key in ("kept", "total", "connected", "idle", "flow_log2", "prune_seconds")},
        "empty_layers": len(certificate["empty_layers"]), "prune_steps": len(certificate["steps"]),
        "dead_layers": sum(not layer["on_path"] for layer in certificate["layers"]),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """JSON knows no infinity: a flow of zero has a logarithm of None."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value


def train_from_checkpoint(
    run: Run, model: nn.Module, observe: Callable[[nn.Module], dict[str, Any]] = lambda _: {}
) -> list[dict[str, Any]]:
    """Train to the end from wherever the run was left, and record each epoch with what `observe` sees in the model."""
    config, context = run.config, run.context
    data = data_of(config, context.data_dir)
    state = run.load_checkpoint()
    done = int(state["epoch"]) if state else 0
    if state is None or len(run.metrics()) >= done:
        run.keep_metrics(done)
    else:
        state, done = None, 0  # metrics were lost, so the epochs have to be done again
        run.keep_metrics(0)
    history = run.metrics()
    saved = time.perf_counter()
    for epoch, snapshot in train_epochs(
        model, data, config.recipe, seed=config.seed, device=context.device, compile=context.compile, state=state
    ):
        line = {**dataclasses.asdict(epoch), **observe(model)}
        run.record(line)
        history.append(line)
        if time.perf_counter() - saved >= context.checkpoint_seconds and epoch.epoch < config.recipe.epochs:
            run.save_checkpoint(snapshot())
            saved = time.perf_counter()
    return history


def mean_square(model: nn.Module) -> dict[str, float]:
    """The average squared magnitude of each prunable layer."""
    return {
        name.removesuffix(".weight"): float(weight.detach().double().square().mean())
        for name, weight in synflow.prunable(model).items()
    }
