"""The scores: each maps (network, masks) to a number per weight, higher = keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from ..flow.measure import measure
from ..network.private_copy import Network
from .gradients import hessian_products, loss_gradients, masked_weights

Scores: TypeAlias = "dict[str, Tensor]"
Score: TypeAlias = Callable[[Network, "Mapping[str, Tensor] | None"], Scores]


def synflow(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """|w| dR/d|w|: the synaptic flow through a weight, without data."""
    return measure(network, masks).scores


def synflow_l2(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """w^2 dR/dw^2: the flow of the network of squared weights, without data."""
    return measure(network, masks, power=2).scores


def magnitude(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """|w|."""
    return {name: weight.abs() for name, weight in masked_weights(network, masks).items()}


def random(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """Uniform random numbers from the seed, the same at each step and on each device."""
    generator = torch.Generator().manual_seed(network.seed)
    return {
        name: torch.rand(weight.shape, generator=generator).to(weight.device)
        for name, weight in network.weights.items()
    }


def snip(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Scores:
    """|dL/dw * w|: how much the loss depends on a weight being there."""
    return {name: value.abs() for name, value in _loss_saliency(network, masks, training).items()}


def grasp(
    network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True, temperature: float = 200.0
) -> Scores:
    """(H g) * w: what a weight contributes to the flow of gradient; outputs are divided by the temperature."""
    gradients = loss_gradients(network, masks, training=training, temperature=temperature)
    products = hessian_products(network, masks, gradients, training=training, temperature=temperature)
    return _times_weights(network, masks, products)


def skeletonization(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Scores:
    """-dL/dw * w: the first-order increase of the loss when a weight goes."""
    return {name: -value for name, value in _loss_saliency(network, masks, training).items()}


def taylor_fo(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Scores:
    """(dL/dw * w)^2."""
    return {name: value**2 for name, value in _loss_saliency(network, masks, training).items()}


def obd(
    network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True, probes: int = 4
) -> Scores:
    """diag(H) * w^2, the diagonal by Hutchinson's estimator: the mean of v * (H v) over random signs v."""
    generator = torch.Generator().manual_seed(network.seed)
    diagonal: Scores = {}
    for _ in range(probes):
        signs = {
            name: (torch.randint(0, 2, w.shape, generator=generator) * 2 - 1).to(w.device, torch.float32)
            for name, w in network.weights.items()
        }
        for name, product in hessian_products(network, masks, signs, training=training).items():
            part = product * signs[name].to(product.dtype) / probes
            diagonal[name] = part if name not in diagonal else diagonal[name].add_(part)
    weights = masked_weights(network, masks)
    return {name: value * weights[name] ** 2 for name, value in diagonal.items()}


def force(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Scores:
    """|dL/dw * w| with the gradient of the pruned network and the unpruned weights, so that weights may come back."""
    gradients = loss_gradients(network, masks, training=training)
    return {name: value.abs() for name, value in _times_weights(network, None, gradients).items()}


def _loss_saliency(network: Network, masks: Mapping[str, Tensor] | None, training: bool) -> Scores:
    return _times_weights(network, masks, loss_gradients(network, masks, training=training))


def _times_weights(network: Network, masks: Mapping[str, Tensor] | None, factors: Scores) -> Scores:
    weights = masked_weights(network, masks)
    return {name: factor.mul_(weights[name]) for name, factor in factors.items()}


SCORES: dict[str, Score] = {
    "force": force,
    "grasp": grasp,
    "magnitude": magnitude,
    "obd": obd,
    "random": random,
    "skeletonization": skeletonization,
    "snip": snip,
    "synflow": synflow,
    "synflow_l2": synflow_l2,
    "taylor_fo": taylor_fo,
}

# Scores that are shares of a flow, with the power of the weights in it: these can be guarded by the union bound.
FLOW_POWER: dict[Score, int] = {synflow: 1, synflow_l2: 2}

# The paper's number of steps; every other score is single-shot. FORCE is iterative by its nature.
DEFAULT_STEPS: dict[Score, int] = {synflow: 100, synflow_l2: 100, force: 10}

# Scores that choose among all weights at each step, so that masks are not nested.
REVIVES: frozenset[Score] = frozenset({force})
