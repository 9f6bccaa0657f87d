"""The scores: each maps (network, masks) to a number per weight, higher = keep.

A score is one function, with its traits above it, and one row in `SCORES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..errors import SynflowError, brief
from ..flow.measure import absolute, measure
from ..flow.normalised import normalised
from ..flow.paths import cuts
from ..network.private_copy import Network
from .checks import is_whole
from .engine import balanced_scores
from .gradients import hessian_products, loss_gradients, masked_weights, meta_gradients
from .path_exclusion import path_saliency
from .random_walks import first_visits
from .tangent_kernel import kernel_saliency

Scores: TypeAlias = "dict[str, Tensor]"
Score: TypeAlias = Callable[[Network, "Mapping[str, Tensor] | None"], Scores]


@dataclass(frozen=True)
class Traits:
    """What the pruning loop has to know about a score.

    `needs_data`: it reads batches. `flow_power`: it is a share of the flow of |w| ** flow_power, so that the union
    bound can guard it. `balanced`: every layer sums to the flow. `steps`: the number of steps by default. `revives`:
    it chooses among all weights at each step, so that masks are not nested.
    """

    needs_data: bool = False
    flow_power: int | None = None
    balanced: bool = False
    steps: int = 1
    revives: bool = False

    @property
    def is_flow(self) -> bool:
        """Whether the score is a share of a flow."""
        return self.flow_power is not None


_Function = TypeVar("_Function", bound=Callable[..., Any])


def traits(**given: Any) -> Callable[[_Function], _Function]:
    """Give a score its traits; a score without any needs no data and takes one step."""

    def decorate(function: _Function) -> _Function:
        function.traits = Traits(**given)  # type: ignore[attr-defined]
        return function

    return decorate


def traits_of(score: Score) -> Traits:
    """The traits of a score, also of a user's own function, or of either with some arguments fixed."""
    while isinstance(score, partial):
        score = score.func
    found = getattr(score, "traits", None)
    return found if isinstance(found, Traits) else Traits()


@traits(flow_power=1, steps=100)
def synflow(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """|w| dR/d|w|: the synaptic flow through a weight, without data."""
    return measure(network, masks).scores


@traits(flow_power=2, steps=100)
def synflow_l2(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """w^2 dR/dw^2: the flow of the network of squared weights, without data."""
    return measure(network, masks, power=2).scores


@traits(flow_power=1, balanced=True, steps=100)
def balanced(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """The share of its layer's flow that passes a weight, times R, so that every layer sums to R.

    In networks with batch norms and branches the flow is normalised, and shares are of |w| sqrt(dR/d|w|).
    """
    magnitudes = absolute(network, masks)
    with normalised(network) as spread:
        return balanced_scores(measure(network, magnitudes=magnitudes), magnitudes, cuts(network), spread)


def magnitude(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """|w|."""
    return {name: weight.abs() for name, weight in masked_weights(network, masks).items()}


def lamp(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """w^2 / (sum of v^2 over the weights v of its layer that are no smaller): magnitude, comparable between layers."""
    scores = {}
    for name, square in absolute(network, masks, power=2).items():
        ordered, order = torch.sort(square.flatten().to(torch.float64), descending=True, stable=True)
        part = ordered / ordered.cumsum(0).clamp_min(torch.finfo(torch.float64).tiny)
        scores[name] = torch.empty_like(part).scatter_(0, order, part).view(square.shape)
    return scores


def phew(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """One over the index of the first random walk that passes the weight; walks prefer large |w|."""
    return {name: time.reciprocal() for name, time in first_visits(network, masks).items()}


@traits(steps=100)
def ntk_sap(
    network: Network, masks: Mapping[str, Tensor] | None = None, *, draws: int = 1, deviation: float = 0.01
) -> Scores:
    """|d/dm E|f(w m) - f((w + dw) m)|^2|: the trace of the tangent kernel at new random weights, on random inputs."""
    return kernel_saliency(network, masks, draws, deviation)


@traits(needs_data=True, steps=100)
def px(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = False) -> Scores:
    """w^2 dR/dw^2, R = the flow of squared weights, weighted by the data that reaches each output on active paths."""
    return path_saliency(network, masks, training)


@traits(needs_data=True)
def prospr(
    network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True, steps: int = 3,
    lr: float = 0.5, momentum: float = 0.9,
) -> Scores:  # fmt: skip
    """|dL(w_K)/dw_0 * w_0|: how much the loss after K steps of training depends on a weight being there."""
    gradients = meta_gradients(network, masks, training=training, steps=steps, lr=lr, momentum=momentum)
    return {name: value.abs() for name, value in _times_weights(network, masks, gradients).items()}


def random(network: Network, masks: Mapping[str, Tensor] | None = None) -> Scores:
    """Uniform random numbers from the seed, the same at each step and on each device."""
    generator = torch.Generator().manual_seed(network.seed)
    return {
        name: torch.rand(weight.shape, generator=generator).to(weight.device)
        for name, weight in network.weights.items()
    }


@traits(needs_data=True)
def snip(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Scores:
    """|dL/dw * w|: how much the loss depends on a weight being there."""
    return {name: value.abs() for name, value in _loss_saliency(network, masks, training).items()}


@traits(needs_data=True)
def grasp(
    network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True, temperature: float = 200.0
) -> Scores:
    """(H g) * w: what a weight contributes to the flow of gradient; outputs are divided by the temperature."""
    gradients = loss_gradients(network, masks, training=training, temperature=temperature)
    products = hessian_products(network, masks, gradients, training=training, temperature=temperature)
    return _times_weights(network, masks, products)


@traits(needs_data=True)
def skeletonization(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Scores:
    """-dL/dw * w: the first-order increase of the loss when a weight is removed."""
    return {name: -value for name, value in _loss_saliency(network, masks, training).items()}


@traits(needs_data=True)
def taylor_fo(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Scores:
    """(dL/dw * w)^2."""
    return {name: value**2 for name, value in _loss_saliency(network, masks, training).items()}


@traits(needs_data=True)
def obd(
    network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True, probes: int = 4
) -> Scores:
    """diag(H) * w^2, the diagonal by Hutchinson's estimator: the mean of v * (H v) over random signs v."""
    if not is_whole(probes) or probes < 1:
        raise SynflowError(f"obd: probes must be a whole number of at least 1, got {brief(probes)}")
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


@traits(needs_data=True, steps=10, revives=True)
def force(network: Network, masks: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Scores:
    """|dL/dw * w| with the gradient of the pruned network and the unpruned weights, so that weights may come back."""
    gradients = loss_gradients(network, masks, training=training)
    return {name: value.abs() for name, value in _times_weights(network, None, gradients).items()}


def _loss_saliency(network: Network, masks: Mapping[str, Tensor] | None, training: bool) -> Scores:
    return _times_weights(network, masks, loss_gradients(network, masks, training=training))


def _times_weights(network: Network, masks: Mapping[str, Tensor] | None, factors: Scores) -> Scores:
    weights = masked_weights(network, masks)
    return {name: factor.mul_(weights[name]) for name, factor in factors.items()}


SCORE_FORM = "(network, masks) -> scores"
SCORES: dict[str, Score] = {
    "balanced": balanced,
    "force": force,
    "grasp": grasp,
    "lamp": lamp,
    "magnitude": magnitude,
    "ntk_sap": ntk_sap,
    "obd": obd,
    "phew": phew,
    "prospr": prospr,
    "px": px,
    "random": random,
    "skeletonization": skeletonization,
    "snip": snip,
    "synflow": synflow,
    "synflow_l2": synflow_l2,
    "taylor_fo": taylor_fo,
}
