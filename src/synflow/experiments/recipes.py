"""How a network is trained, and the paper's choices for each of its networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from synflow.errors import SynflowError, named

__all__ = ["OPTIMIZERS", "RATES", "STARTS", "Recipe", "optimizer", "paper_recipe", "rate"]


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run; `lr` is the rate at its highest, `drops` are epochs (for `lr_schedule="step"`).

    `lr_factor` multiplies the rate. The paper's authors trained with three times the rate they state (a bug that
    their appendix explains and keeps), so `lr_factor=3` is what the published accuracies were made with.
    `evaluate_every` counts epochs; the last one is always evaluated. `channels_last` lays images out in memory as most
    CPUs like them for convolutions, where all widths are multiples of eight; it changes speed and rounding only.
    """

    epochs: int = 1
    batch_size: int = 128
    optimizer: str = "momentum"
    lr: float = 0.1
    lr_factor: float = 1.0
    lr_schedule: str = "step"
    drops: tuple[int, ...] = ()
    drop_factor: float = 0.1
    warmup: float = 0.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0
    augment: bool = True
    evaluate_every: int = 1
    precision: str = "float32"
    channels_last: bool = False

    def __post_init__(self) -> None:
        named("optimizer", self.optimizer, OPTIMIZERS)
        named("learning-rate schedule", self.lr_schedule, RATES)
        named("precision", self.precision, ("float32", "bfloat16", "float16"))
        for name, least in (("epochs", 0), ("batch_size", 2), ("evaluate_every", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise SynflowError(f"{name} must be at least {least}, got {getattr(self, name)!r}")
        if not (self.lr > 0 and self.lr_factor > 0):
            raise SynflowError(f"the learning rate must be above 0, got {self.lr} * {self.lr_factor}")


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
}  # fmt: skip


def optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer over the parameters of a model."""
    more = {"momentum": recipe.momentum} if recipe.optimizer == "momentum" else {}
    return OPTIMIZERS[recipe.optimizer](model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay, **more)


def _step(recipe: Recipe, epoch: float) -> float:
    return recipe.drop_factor ** sum(epoch >= drop for drop in recipe.drops)


def _cosine(recipe: Recipe, epoch: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / max(recipe.epochs, 1))))


def _one_cycle(recipe: Recipe, epoch: float) -> float:
    """Up in a straight line over the first 30 %, down to nearly zero along a cosine."""
    part = min(1.0, epoch / max(recipe.epochs, 1))
    if part < 0.3:
        return 0.04 + 0.96 * part / 0.3
    return max(1e-4, 0.5 * (1 + math.cos(math.pi * (part - 0.3) / 0.7)))


RATES: dict[str, Callable[[Recipe, float], float]] = {
    "constant": lambda *_: 1.0,
    "step": _step,
    "cosine": _cosine,
    "one_cycle": _one_cycle,
}


def rate(recipe: Recipe, epoch: float) -> float:
    """The learning rate at a moment: 1.5 is the middle of the second epoch. Without memory, so easy to resume.

    >>> recipe = Recipe(epochs=160, lr=0.1, drops=(60, 120))
    >>> [round(rate(recipe, epoch), 6) for epoch in (0, 59.9, 60, 120)]
    [0.1, 0.1, 0.01, 0.001]
    """
    warm = min(1.0, epoch / recipe.warmup) if recipe.warmup > 0 and epoch < recipe.warmup else 1.0
    return recipe.lr * recipe.lr_factor * RATES[recipe.lr_schedule](recipe, epoch) * max(warm, 1e-3)


# What a sweep starts from: networks of all sizes learn the digits within 20 epochs of seconds.
_DIGITS = Recipe(epochs=20, batch_size=64, lr=0.05, lr_schedule="one_cycle")
STARTS = {"digits": _DIGITS, "digits32": _DIGITS}

# As in the commands that the authors published with their code; docs/paper.md says what is in doubt.
_VGG = Recipe(epochs=160, lr=0.1, drops=(60, 120), drop_factor=0.1, weight_decay=1e-4)
_RESNET = Recipe(epochs=160, lr=0.01, drops=(60, 120), drop_factor=0.2, weight_decay=5e-4)
_TINY = Recipe(epochs=100, lr=0.01, drops=(30, 60, 80), drop_factor=0.1, weight_decay=1e-4)


def paper_recipe(model: str, dataset: str, published: bool = False) -> Recipe:
    """The paper's hyperparameters for a network and data set; `published` triples the rate, as the authors did.

    >>> paper_recipe("resnet18", "cifar10").weight_decay
    0.0005
    """
    recipe = _TINY if dataset == "tiny-imagenet" else _RESNET if "resnet" in model else _VGG
    return replace(recipe, lr_factor=3.0 if published else 1.0)
