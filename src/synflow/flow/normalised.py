"""Batch norms that normalise the flow, as they will normalise activations in training.

A convolution in front of a batch norm can be scaled by any positive factor without changing the network that is
trained, but its flow is scaled as well: a branch of two 3x3 convolutions dwarfs the 1x1 shortcut beside it. So each
batch norm of the private copy gets statistics by which it divides by the mean flow of its tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..network.private_copy import Network
from .measure import measure
from .passes import PassOptions
from .paths import cuts

# Scales are limited to 2^40, since their squares, the variances, have to fit into float32.
MOST_BITS = 40


@contextmanager
def normalised(network: Network) -> Iterator[bool]:
    """Let batch norms divide by the mean flow of their tensor, measured once on the whole network; False without any.

    In a chain the scale of a layer cancels, so nothing is done: its scores stay those of the paper to the last bit.
    Behind the block the network has its own statistics again.
    """
    before = [(norm, mean.clone(), variance.clone(), eps) for norm, mean, variance, eps in _norms(network)]
    try:
        yield len(cuts(network)) < len(network.weights) and _normalise(network)
    finally:
        with torch.no_grad():
            for norm, mean, variance, eps in before:
                norm.running_mean.copy_(mean)
                norm.running_var.copy_(variance)
                if getattr(norm, "eps", 0.0) != eps:
                    norm.eps = eps


@torch.no_grad()
def _normalise(network: Network) -> bool:
    found = measure(network, options=PassOptions(norms=True), gradients=False).mean_flows
    for norm, mean, variance, eps in _norms(network):
        scale, exponent = found.get(id(variance), (0.0, 0))
        if float(scale) > 0:
            mean.zero_()
            square = 4.0 ** max(min(math.log2(float(scale)) + exponent, MOST_BITS), -MOST_BITS)
            if square < eps:  # a variance alone cannot make up for so small a scale
                norm.eps = eps = 0.0
            variance.fill_(square - eps)
    return bool(found)


def _norms(network: Network) -> Iterator[tuple[Any, Tensor, Tensor, float]]:
    """Modules that have statistics, with these and what is added to the variance."""
    for module in network.model.modules():
        mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(variance, Tensor):
            yield module, mean, variance, getattr(module, "eps", 0.0)
