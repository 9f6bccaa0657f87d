"""SynFlow on a network that gets smaller as it goes: units that have died are cut out, pruning goes on without them.

The flow through dead units is zero, so this is the algorithm of `synflow.prune` for less work. Near-ties among weights
may be broken otherwise, as sums are rounded in another order; densities layer by layer agree closely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import synflow

__all__ = ["prune_shrinking"]


def prune_shrinking(
    model: nn.Module,
    example: Any,
    *,
    compression: float,
    steps: int = 100,
    score: str = "synflow",
    shrink: float = 4.0,
    guard: bool = True,
    observe: Callable[[synflow.Step], object] = lambda _: None,
) -> dict[str, Tensor]:
    """Masks as `synflow.prune` makes them in so many exponential steps; cuts dead units out each time the density
    has fallen by the factor `shrink`. Not for networks with grouped convolutions.

    >>> model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 5))
    >>> masks = prune_shrinking(model, torch.ones(1, 10), compression=50, steps=20)
    >>> synflow.density(masks) == round(2200 / 50) / 2200
    True
    """
    weights = synflow.prunable(model)
    total = sum(weight.numel() for weight in weights.values())
    # Which rows, columns, ... of each dense weight are left.
    places = {name: [torch.arange(length) for length in weight.shape] for name, weight in weights.items()}
    shapes = {name: weight.shape for name, weight in weights.items()}
    keep, current, masks, done, last = round(total / compression), model, None, 0, 1.0
    while done < steps:
        size = sum(weight.numel() for weight in synflow.prunable(current).values())
        begin = size if masks is None else sum(int(mask.sum()) for mask in masks.values())

        def share(index: int, _: int, __: float, before: int = done, begin: int = begin) -> float:
            # The counts of one run through all steps: idle weights that went with a dead unit do not hurry the rest.
            return float(total * (keep / total) ** ((before + index) / steps) / begin)

        for step in synflow.iterate(
            current, example, density=keep / size, score=score, steps=steps - done, schedule=share, masks=masks,
            guard=guard,
        ):  # fmt: skip
            done += 1
            observe(step)
            masks = step.masks
            if done < steps and step.kept / total < last / shrink:
                last = step.kept / total
                break
        assert masks is not None
        if done < steps:
            current = synflow.compact(current, example, masks)
            record: Any = current.compaction
            _follow(places, record.kept)
            masks = synflow.attached(current)
            synflow.bake(current)
    assert masks is not None
    return {name: _dense(mask, places[name], shapes[name]) for name, mask in masks.items()}


def _follow(places: dict[str, list[Tensor]], kept: Mapping[str, Mapping[int, Any]]) -> None:
    for name, dims in kept.items():
        for dim, indices in dims.items() if name in places else ():
            places[name][dim] = places[name][dim][torch.tensor(indices)]


def _dense(mask: Tensor, places: list[Tensor], shape: torch.Size) -> Tensor:
    full = torch.zeros(shape, dtype=torch.bool)
    full[torch.meshgrid(*places, indexing="ij")] = mask
    return full
