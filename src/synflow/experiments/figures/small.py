"""The network, data and training that the experiments with training share, at each scale."""

from __future__ import annotations

from dataclasses import replace

from ..configs import Config
from ..recipes import Recipe, paper_recipe

__all__ = ["full_width_base", "training_base"]


def training_base(scale: str) -> Config:
    """VGG-11 on CIFAR-10 as in the paper; a quarter as wide on part of the data on a laptop; seconds for smoke."""
    if scale == "smoke":
        recipe = Recipe(epochs=2, batch_size=64, lr=0.05, lr_schedule="one_cycle")
        return Config(model="conv", width=0.25, dataset="digits", train_per_class=20, images_per_class=1, recipe=recipe)
    if scale == "laptop":
        recipe = Recipe(
            epochs=8, batch_size=64, lr=0.1, lr_schedule="one_cycle", weight_decay=5e-4, evaluate_every=8,
            channels_last=True,
        )  # fmt: skip
        return Config(model="vgg11_bn", width=0.25, dataset="cifar10", train_per_class=300, recipe=recipe)
    return Config(model="vgg11_bn", dataset="cifar10", recipe=paper_recipe("vgg11_bn", "cifar10", published=True))


def full_width_base(scale: str) -> Config:
    """The same, on a laptop at the full width: a tenth of the training images, all test images."""
    base = training_base(scale)
    if scale != "laptop":
        return base
    recipe = Recipe(epochs=12, batch_size=64, lr=0.1, lr_schedule="one_cycle", weight_decay=5e-4, evaluate_every=12)
    return replace(base, width=1.0, train_per_class=500, recipe=recipe)
