"""Gradients and Hessian products of a loss at the masked weights, accumulated over batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from ..errors import SynflowError
from ..flow.measure import cast_rest
from ..network.private_copy import Network, isolated, restoring
from ..support.memory import give_back
from ..support.torch_modes import plain_tensors
from .batch_norm_double_backward import EconomicalNorms

Weights = Mapping[str, Tensor]


@restoring
def loss_gradients(
    network: Network, masks: Weights | None, *, training: bool = True, temperature: float = 1.0
) -> dict[str, Tensor]:
    """dL/dw at the masked weights, summed over the batches (also for masked weights)."""
    total: dict[str, Tensor] = {}
    with closing(_losses(network, masks, training, temperature)) as losses:
        for loss, leaves in losses:
            _accumulate(total, leaves, torch.autograd.grad(loss, list(leaves.values()), allow_unused=True))
            del loss
    return total


@restoring
def hessian_products(
    network: Network, masks: Weights | None, vectors: Weights, *, training: bool = True, temperature: float = 1.0
) -> dict[str, Tensor]:
    """H v, the Hessian of the summed loss times a vector."""
    total: dict[str, Tensor] = {}
    losses = _losses(network, masks, training, temperature)
    # Fused attention kernels have no second derivative.
    with sdpa_kernel(SDPBackend.MATH), EconomicalNorms(), closing(losses):
        for loss, leaves in losses:
            _accumulate(total, leaves, _products(loss, leaves, vectors))
            del loss  # and its graph, before the next batch makes another
    return total


def _products(loss: Tensor, leaves: Weights, vectors: Weights) -> tuple[Tensor | None, ...]:
    inputs = list(leaves.values())
    first = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
    along = [_Along.apply(g, vectors[n]) for n, g in zip(leaves, first, strict=True) if g is not None]
    del first  # its graph is held by what was made of it, the gradients themselves need not be
    slope = torch.stack(along).sum() if along else loss * 0.0
    if not slope.requires_grad:
        return (None,) * len(inputs)
    give_back()
    return torch.autograd.grad(slope, inputs, allow_unused=True)


class _Along(torch.autograd.Function):
    """A number whose derivative by a gradient is the vector: their product, which nobody reads, is left out."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, vector: Tensor) -> Tensor:
        ctx.vector = vector
        return gradient.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        return ctx.vector, None


@plain_tensors
def saliency(objective: Callable[[dict[str, Tensor]], Tensor], weights: Weights) -> dict[str, Tensor]:
    """Synaptic saliency dR/dw * w of any scalar objective of the weights.

    >>> saliency(lambda w: (w["a"] * w["b"]).sum(), {"a": torch.tensor([2.0]), "b": torch.tensor([3.0])})
    {'a': tensor([6.]), 'b': tensor([6.])}
    """
    with torch.enable_grad():
        leaves = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        value = objective(leaves)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise SynflowError("the objective must return a tensor with one element, computed from the given weights")
        found = torch.autograd.grad(value.reshape(()), list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf.detach()) if gradient is None else gradient * leaf.detach()
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }


@plain_tensors
def masked_weights(network: Network, masks: Weights | None) -> dict[str, Tensor]:
    """The weights as the pruned network sees them, in at least single precision."""
    result = {}
    for name, weight in network.weights.items():
        dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
        value = weight.to(dtype)
        result[name] = value.clone() if masks is None else value * masks[name]
    return result


def _losses(
    network: Network, masks: Weights | None, training: bool, temperature: float
) -> Generator[tuple[Tensor, dict[str, Tensor]], None, None]:
    """The loss of each batch; to be closed, so that random numbers and modes come back at once on an error."""
    leaves = {name: value.requires_grad_() for name, value in masked_weights(network, masks).items()}
    dtype = next(iter(leaves.values())).dtype
    batches = network.batches
    network.model.train(training)
    network.replace(leaves)
    cast_rest(network, dtype)
    for position, (inputs, targets) in enumerate(batches):
        # The same random numbers (dropout) in every pass over the same batch.
        with isolated(network.seed + position, network.device):
            outputs = network.call(pytree.tree_map(lambda leaf: _to(leaf, dtype), inputs))
            if temperature != 1.0:
                outputs = pytree.tree_map(lambda leaf: _scale(leaf, temperature), outputs)
            loss = network.loss(outputs, targets)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise SynflowError(f"the loss must return a tensor with one element, got {_describe(loss)}")
            if not bool(torch.isfinite(loss)):
                raise SynflowError(
                    f"the loss is {float(loss.detach())} on batch {position} of {len(batches)}; check that the data "
                    "is finite and that the targets fit the loss"
                )
            if not loss.requires_grad:
                raise SynflowError("the loss does not depend on any prunable weight; check the loss function")
            yield loss.reshape(()), leaves
            del outputs, loss


def _accumulate(total: dict[str, Tensor], leaves: Weights, found: tuple[Tensor | None, ...]) -> None:
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        if name not in total:
            total[name] = torch.zeros_like(leaf.detach())
        if gradient is not None:
            total[name].add_(gradient.detach())


def _to(leaf: object, dtype: torch.dtype) -> object:
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _scale(leaf: object, temperature: float) -> object:
    return leaf / temperature if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _describe(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
