"""New values for the weights that were kept.

A score that prefers large weights leaves large ones. They turn slowly in training: behind a norm or under Adam a weight
changes by a step of fixed size, whatever its own size. Which weights stay matters, their first values do not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from ..support.random_state import random_order
from .attach import attached
from .checks import check_masks, named_weights, some


@torch.no_grad()
def redraw(model: nn.Module, masks: Mapping[str, Tensor], seed: int = 0) -> None:
    """Deal the values of each masked tensor out anew, in place: kept weights are then a fair sample of them.

    Each tensor keeps its values, in a random order that depends on the seed and the tensor's name alone. Call it before
    `attach` or `compact`. Not for trained weights.

    >>> layer = nn.Linear(1000, 1, bias=False)
    >>> mask = layer.weight.abs() > 0.9 * layer.weight.abs().max()
    >>> before = layer.weight[mask].std()
    >>> redraw(layer, {"weight": mask})
    >>> bool(layer.weight[mask].std() < before)
    True
    """
    check_masks(masks, model)
    held = attached(model)
    if held:
        raise SynflowError(
            f"the values of pruned weights are gone where masks are attached ({some(held)}), so there is nothing to "
            "draw from; call redraw before attach"
        )
    weights = named_weights(model)
    for name in masks:
        weight = weights[name]
        weight.copy_(weight.flatten()[random_order(seed, name, weight.numel()).to(weight.device)].view(weight.shape))
