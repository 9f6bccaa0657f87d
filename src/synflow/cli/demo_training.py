"""The runs of the demonstration: prune by five methods, train, measure."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..certificates.certificate import certify
from ..compaction import compact
from ..experiments.data import Dataset, load, scoring_batches
from ..experiments.recipes import Recipe
from ..experiments.training import evaluate, train
from ..masks.attach import attach
from ..masks.results import Masks
from ..pruning.loop import prune

METHODS = ("synflow", "grasp", "snip", "magnitude", "random")


@dataclass(frozen=True)
class Setting:
    """The network before pruning, its data, and its training recipe."""

    model: nn.Module
    example: Tensor
    data: Dataset
    recipe: Recipe
    batches: list[tuple[Tensor, Tensor]]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """A pruned network after training."""

    method: str
    compression: float
    accuracy: float
    connected: bool
    masks: Masks


@dataclass(frozen=True)
class Variant:
    """The same training of the dense, the masked or the compact network."""

    name: str
    accuracy: float
    weights: int
    parameters: int
    steps_per_second: float


def prepare(width: int, epochs: int, seed: int) -> Setting:
    """The digits, and a small VGG for them with weights from the seed."""
    data = load("digits")
    torch.manual_seed(seed)
    model = _network(width)
    recipe = Recipe(epochs=epochs, lr=0.05, lr_schedule="cosine", evaluate_every=epochs)
    return Setting(model, torch.ones(1, *data.shape), data, recipe, scoring_batches(data, 100, 100, seed), seed)


def outcomes(setting: Setting, compressions: Sequence[float]) -> Iterator[Outcome]:
    """Prune, train and test with every method at every compression; networks train compact, with the same results."""
    for method in METHODS:
        for compression in compressions:
            masks = prune(
                setting.model, setting.example, compression=compression, score=method, data=setting.batches,
                seed=setting.seed,
            )  # fmt: skip
            connected = certify(setting.model, masks, setting.example).connected
            if connected:
                accuracy = _trained(compact(setting.model, setting.example, masks), setting)[0]
            else:
                # No weight affects the outputs, so training cannot change anything.
                masked = attach(copy.deepcopy(setting.model), masks)
                accuracy = evaluate(masked, setting.data)["top1"]
            yield Outcome(method, compression, accuracy, connected, masks)


def compare_variants(setting: Setting, compression: float) -> Iterator[Variant]:
    """The same training dense, masked and compact, with masks of SynFlow."""
    masks = prune(setting.model, setting.example, compression=compression, seed=setting.seed)
    kept, total = (sum(int(t) for t in values) for values in (
        (mask.sum() for mask in masks.values()), (mask.numel() for mask in masks.values())
    ))  # fmt: skip
    made = {
        "dense": (copy.deepcopy(setting.model), total),
        "masked": (attach(copy.deepcopy(setting.model), masks), kept),
        "compact": (compact(setting.model, setting.example, masks), kept),
    }
    for name, (model, weights) in made.items():
        accuracy, speed = _trained(model, setting)
        yield Variant(name, accuracy, weights, sum(p.numel() for p in model.parameters()), speed)


def _trained(model: nn.Module, setting: Setting) -> tuple[float, float]:
    """Test accuracy in percent, and training steps per second."""
    history = train(model, setting.data, setting.recipe, seed=setting.seed)
    steps = -(-len(setting.data.train_labels) // setting.recipe.batch_size)
    # The first epoch is a warm-up, and the last one includes an evaluation; neither counts.
    timed = [epoch.seconds for epoch in history[1:-1] or history]
    accuracy = history[-1].top1
    assert accuracy is not None
    return accuracy, steps * len(timed) / sum(timed)


def _network(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 1
    for stage, outputs in enumerate((width, 2 * width, 4 * width)):
        layers += [nn.MaxPool2d(2)] if stage else []
        for _ in range(2):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            channels = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return model
