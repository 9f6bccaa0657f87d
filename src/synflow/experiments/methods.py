"""From a config to a network and its masks, on the public API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import synflow
from synflow.errors import SynflowError

from ..models.built_in import build
from ..models.own_files import name_or_function
from ..network.flops import flops as count_flops
from ..pruning.scores import traits_of
from .configs import Config, reads_data
from .data import SHAPES, Dataset, load, scoring_batches

__all__ = [
    "example_of",
    "load_data",
    "make_masks",
    "make_model",
    "narrower",
    "network_of",
    "score_of",
    "trainable",
]

# Networks whose width is a number of units, not a factor.
ABSOLUTE_WIDTHS = {"fc": 100, "conv": 32}


@lru_cache(maxsize=2)
def load_data(
    name: str, data_dir: str | None, train_per_class: int | None = None, test_per_class: int | None = None
) -> Dataset:
    """A data set, kept in memory for the next run of this process."""
    return load(name, data_dir, train_per_class=train_per_class, test_per_class=test_per_class)


def data_of(config: Config, data_dir: str | None) -> Dataset:
    """The config's data set."""
    return load_data(config.dataset, data_dir, config.train_per_class, config.test_per_class)


def example_of(config: Config) -> Tensor:
    """One input of the right shape."""
    return torch.ones(1, *SHAPES[config.dataset][1])


def make_model(config: Config, seed: int | None = None, width: float | None = None) -> nn.Module:
    """The network at initialisation, from the config's seed; the caller's random numbers are left alone."""
    with torch.random.fork_rng([]):
        torch.manual_seed(config.seed if seed is None else seed)
        return network_of(config.model, config.dataset, width or config.width)


def network_of(name: str, dataset: str, width: float = 1.0) -> nn.Module:
    """A network by name for a data set: a built-in one, `timm:NAME`, `transformers:NAME` or `file.py:function`."""
    classes, shape = SHAPES[dataset]
    if ":" in name:
        from synflow.models.sources import load_model

        if width != 1.0:
            raise SynflowError(f"{name} has one width; width={width:g} is for the built-in networks")
        size = "x".join(map(str, (1, *shape)))
        return load_model(name, inputs=[size], classes=classes, seed=torch.initial_seed()).model
    options: dict[str, Any] = {} if width == 1.0 else {"width": width}
    if name in ABSOLUTE_WIDTHS and options:
        options["width"] = max(1, round(ABSOLUTE_WIDTHS[name] * width))
    return build(name, classes=classes, input_shape=shape, **options)


def score_of(config: Config) -> Any:
    """The score as the config wants it: a name, or a function for the named deviations and for scores on trial."""
    if config.scoring == "train" and config.ablation != "invert":
        return name_or_function(config.method)
    function: Any = synflow.SCORES.get(config.method) or name_or_function(config.method)
    sign = 1.0
    if config.scoring == "eval" and reads_data(config.method):
        function = partial(function, training=False)
        if config.method == "grasp":
            function, sign = partial(function, temperature=1.0), -1.0
    if config.ablation == "invert":
        sign = -sign
    return function if sign > 0 else partial(_negative, function)


def _negative(function: Any, network: Any, masks: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    return {name: -value for name, value in function(network, masks).items()}


def make_masks(config: Config, model: nn.Module, data_dir: str | None) -> synflow.Masks:
    """Prune as the config says, ablations included."""
    batches = None
    if reads_data(config.method):
        data = data_of(config, data_dir)
        batches = scoring_batches(data, config.images or config.images_per_class * data.classes, seed=config.seed)
    steps = config.steps
    if steps is None and config.ablation == "invert" and config.method in synflow.SCORES:
        steps = traits_of(synflow.SCORES[config.method]).steps  # an inverted score has no traits of its own
    masks = synflow.prune(
        model, example_of(config), compression=config.compression, score=score_of(config), steps=steps,
        schedule=name_or_function(config.schedule), margin=config.margin, guard=None if config.guard else False,
        scope=config.scope, data=batches, seed=config.seed,
    )  # fmt: skip
    if config.ablation == "shuffle":
        return synflow.Masks(synflow.shuffle(masks, seed=config.seed), masks.about, masks.steps)
    return masks


@dataclass(frozen=True)
class Trainable:
    """A network ready for training, and what is known of it."""

    model: nn.Module
    about: dict[str, Any]


def trainable(config: Config, masks: Mapping[str, Tensor] | None) -> Trainable:
    """The network that is trained: dense, masked, compact, or a narrower one."""
    example = example_of(config)
    about: dict[str, Any] = {"notes": []}
    started = time.perf_counter()
    if config.method.startswith("narrow_"):
        model, about["width"] = narrower(config)
    else:
        seed = config.seed + 1_000_000 if config.ablation == "reinitialise" else config.seed
        model = make_model(config, seed)
        if masks is not None:
            if config.ablation == "redraw":
                synflow.redraw(model, masks, seed=config.seed)
            model = _pruned(model, masks, example, config.compact, about)
    about["compact_seconds"] = time.perf_counter() - started
    about["parameters"] = sum(p.numel() for p in model.parameters())
    about["flops"] = count_flops(model, example)
    return Trainable(model, about)


def _pruned(
    model: nn.Module, masks: Mapping[str, Tensor], example: Tensor, compact: bool, about: dict[str, Any]
) -> nn.Module:
    if compact:
        try:
            return synflow.compact(model, example, masks)
        except SynflowError as cause:
            # A collapsed network may have nothing left to build a network of; masked, it trains as it is.
            about["notes"].append(f"trained masked, not compact: {cause}")
    return synflow.attach(model, masks)


def narrower(config: Config) -> tuple[nn.Module, float]:
    """A plain dense network with as many operations, or as many weights, as SynFlow's compact network."""
    example = example_of(config)
    dense = make_model(config)
    masks = synflow.prune(dense, example, compression=config.compression, steps=config.steps)
    small = synflow.compact(dense, example, masks)

    def size(model: nn.Module) -> int:
        if config.method == "narrow_flops":
            return count_flops(model, example)
        return sum(weight.numel() for weight in synflow.prunable(model).values())

    wanted = size(small) if config.method == "narrow_flops" else sum(int(mask.sum()) for mask in masks.values())
    low, high = 0.0, config.width
    for _ in range(12):  # widths are whole channels, so this is as fine as they get
        middle = (low + high) / 2
        low, high = (middle, high) if size(make_model(config, width=middle)) <= wanted else (low, middle)
    # The narrowest network there is may still be larger than SynFlow's.
    width = low or high
    return make_model(config, width=width), width
