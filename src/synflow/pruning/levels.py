"""Levelled weights: each layer scaled by a power of two, so that some of the flow passes every layer.

Beside a trunk that carries far more, a branch has next to no flow, and the weights that read it are the lightest of
their layer: by score alone they are all removed before any other, and the branch dies. Scaled up, the branch has its
share of the flow. Which paths there are does not depend on scales, so levelled weights serve to rank what keeps layers
alive, and for nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..flow.measure import absolute, measure
from ..flow.passes import PassOptions
from ..network.private_copy import Network

# A layer is scaled up until this share of the flow passes it: weights that read a branch then rank among the others.
ENOUGH = 2.0**-3
# The layers of a branch are scaled together, so each by a part of what it lacks; scales before a norm do nothing.
SHARE_OF_LACK = 0.5
# The most measurements; each has to double the flow of the layer that has the least.
ROUNDS = 8
# No layer is scaled by more than 2^60 in all, which float32 holds.
MOST_BITS = 60


def levelled(network: Network, masks: Mapping[str, Tensor], options: PassOptions) -> Network:
    """The network with scaled weights: it runs as before, and its weights rank as their paths are needed."""
    scales = _scales(network, masks, options)
    if not any(scales.values()):
        return network
    wide = {name: w if w.dtype == torch.float64 else w.float() for name, w in network.weights.items()}
    return dataclasses.replace(network, weights={name: w * 2.0 ** scales[name] for name, w in wide.items()})


def _scales(network: Network, masks: Mapping[str, Tensor], options: PassOptions) -> dict[str, int]:
    """Powers of two for each layer: those under which the layer that has the least flow has the most."""
    scales = dict.fromkeys(network.weights, 0)
    best, least = dict(scales), -math.inf
    for _ in range(ROUNDS):
        magnitudes = {name: m * 2.0 ** scales[name] for name, m in absolute(network, masks).items()}
        flow = measure(network, magnitudes=magnitudes, options=options)
        sums = {name: float(score.sum(dtype=torch.float64)) for name, score in flow.scores.items()}
        shares = {name: math.log2(total / flow.value) for name, total in sums.items() if total > 0}
        lowest = min(shares.values(), default=0.0)
        if lowest < least + 1.0:
            break
        best, least = dict(scales), lowest
        if lowest >= math.log2(ENOUGH):
            break
        for name, share in shares.items():
            lack = max(math.log2(ENOUGH) - share, 0.0)
            scales[name] = min(scales[name] + math.ceil(SHARE_OF_LACK * lack), MOST_BITS)
    return best
