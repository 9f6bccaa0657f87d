"""Gradients and Hessian products of a loss at the masked weights, accumulated over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import SynflowError, brief, check_function
from ..flow.measure import cast_rest
from ..network.private_copy import Network, isolated, restoring
from ..support.memory import give_back
from ..support.private_torch import pytree
from ..support.torch_modes import plain_tensors
from .batch_norm_double_backward import EconomicalNorms

Weights = Mapping[str, Tensor]
# One for each weight, None where the loss does not depend on it.
Derivatives = tuple[Tensor | None, ...]


@restoring
def loss_gradients(
    network: Network, masks: Weights | None, *, training: bool = True, temperature: float = 1.0
) -> dict[str, Tensor]:
    """dL/dw at the masked weights, summed over the batches (also for masked weights)."""
    return _over_batches(network, masks, training, temperature, _slopes)


@restoring
def hessian_products(
    network: Network, masks: Weights | None, vectors: Weights, *, training: bool = True, temperature: float = 1.0
) -> dict[str, Tensor]:
    """H v, the Hessian of the summed loss times a vector."""
    with _twice_differentiable(network):
        return _over_batches(network, masks, training, temperature, partial(_products, vectors=vectors))


@restoring
def meta_gradients(
    network: Network, masks: Weights | None, *, training: bool, steps: int, lr: float, momentum: float
) -> dict[str, Tensor]:
    """dL(w_K)/dw_0: the loss after K steps of SGD, by the weights before them; each step takes the next batch.

    Only the prunable weights take steps; biases and norms stay as they are.
    """
    if steps < 1:
        raise SynflowError(f"prospr: steps of training must be at least 1, got {steps!r}; for none take 'snip'")
    number, total = len(network.batches), dict[str, Tensor]()
    with isolated(network.seed, network.device), _twice_differentiable(network):
        leaves = leaves_in_place(network, masks, training)
        weights, speed = leaves, dict[str, Tensor]()
        for step in range(steps):
            loss = _seeded_loss(network, step % number)
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
            for name, slope in zip(leaves, slopes, strict=True):
                if slope is not None:
                    slope = slope if masks is None else slope * masks[name]  # a pruned weight takes no step
                    speed[name] = slope + momentum * speed[name] if name in speed else slope
            weights = {name: w - lr * speed[name] if name in speed else w for name, w in weights.items()}
            network.replace(weights)
        _accumulate(total, leaves, _slopes(_seeded_loss(network, steps % number), leaves))
    return total


@contextmanager
def _twice_differentiable(network: Network) -> Iterator[None]:
    """Operations in a form that has a second derivative; an error that says so where torch has none."""
    try:
        # Fused attention kernels have no second derivative.
        with sdpa_kernel(SDPBackend.MATH), EconomicalNorms():
            yield
    except (RuntimeError, NotImplementedError) as cause:
        if "derivative for" not in str(cause):
            raise
        raise SynflowError(
            f"{network.score_name} needs second derivatives, but torch has none here: {cause}; choose a score of first "
            "derivatives, such as 'snip', or replace the operation"
        ) from cause


def _products(loss: Tensor, leaves: Weights, vectors: Weights) -> Derivatives:
    inputs = list(leaves.values())
    first = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
    along = [_Along.apply(g, vectors[n]) for n, g in zip(leaves, first, strict=True) if g is not None]
    del first  # `along` holds its graph; the gradients themselves are not needed
    slope = torch.stack(along).sum() if along else loss * 0.0
    if not slope.requires_grad:
        return (None,) * len(inputs)
    give_back()
    return torch.autograd.grad(slope, inputs, allow_unused=True)


class _Along(torch.autograd.Function):
    """A number whose derivative by a gradient is the vector; its value, which nobody reads, is not computed."""

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
    check_function("objective", objective, "(weights) -> tensor")
    if not isinstance(weights, Mapping) or not weights or not all(isinstance(w, Tensor) for w in weights.values()):
        raise SynflowError(f"weights must be a dict of tensors by name, got {brief(weights)}")
    for name, weight in weights.items():
        if not weight.is_floating_point():
            raise SynflowError(f"{name}: weights are floating-point numbers, got {weight.dtype}")
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


def _over_batches(
    network: Network, masks: Weights | None, training: bool, temperature: float,
    derivatives: Callable[[Tensor, Weights], Derivatives],
) -> dict[str, Tensor]:  # fmt: skip
    """The sum over the batches of derivatives of their losses by the weights."""
    total: dict[str, Tensor] = {}
    leaves = leaves_in_place(network, masks, training)
    for position in range(len(network.batches)):
        # The same random numbers (dropout) in every pass over the same batch.
        with isolated(network.seed + position, network.device):
            _accumulate(total, leaves, derivatives(_loss(network, position, temperature), leaves))
    return total


def _slopes(loss: Tensor, leaves: Weights) -> Derivatives:
    return torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)


def leaves_in_place(network: Network, masks: Weights | None, training: bool) -> dict[str, Tensor]:
    """The masked weights to differentiate by, in place; the rest of the copy in the same precision, in this mode."""
    leaves = {name: value.requires_grad_() for name, value in masked_weights(network, masks).items()}
    network.model.train(training)
    network.replace(leaves)
    cast_rest(network, next(iter(leaves.values())).dtype)
    return leaves


def _seeded_loss(network: Network, position: int) -> Tensor:
    with isolated(network.seed + position, network.device):
        return _loss(network, position)


def _loss(network: Network, position: int, temperature: float = 1.0) -> Tensor:
    """The loss of a batch at the weights that are in place, checked."""
    (inputs, targets), number = network.batches[position], len(network.batches)
    outputs = _told(
        f"{type(network.model).__name__} fails on batch {position} of {number}",
        lambda: network.call(to_precision(inputs, network)),
    )
    if temperature != 1.0:
        outputs = pytree.tree_map(lambda leaf: leaf / temperature if is_floating(leaf) else leaf, outputs)
    what = f"the loss fails on batch {position} of {number}, for which the model returned {_describe(outputs)}"
    loss = _told(what, lambda: network.loss(outputs, targets), "; give a function of outputs and targets: loss=...")
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise SynflowError(f"the loss must return a tensor with one element, got {_describe(loss)}")
    if not bool(torch.isfinite(loss)):
        raise SynflowError(
            f"the loss is {float(loss.detach())} on batch {position} of {number}; check that the data "
            "is finite and that the targets fit the loss"
        )
    if not loss.requires_grad:
        raise SynflowError("the loss does not depend on any prunable weight; check the loss function")
    return loss.reshape(())


def _told(what: str, call: Callable[[], Any], advice: str = "") -> Any:
    """The result of a call of the user's code; an error in it becomes one that says where it came from."""
    try:
        return call()
    except (SynflowError, torch.OutOfMemoryError):
        raise
    except Exception as cause:
        raise SynflowError(f"{what}: {type(cause).__name__}: {cause}{advice}") from cause


def _accumulate(total: dict[str, Tensor], leaves: Weights, found: Derivatives) -> None:
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        if name not in total:
            total[name] = torch.zeros_like(leaf.detach())
        if gradient is not None:
            total[name].add_(gradient.detach())


def to_precision(tree: Any, network: Network) -> Any:
    """Inputs in the precision in which gradients are computed: that of the weights, at least single."""
    wide = next(iter(network.weights.values())).dtype == torch.float64
    dtype = torch.float64 if wide else torch.float32
    return pytree.tree_map(lambda leaf: leaf.to(dtype) if is_floating(leaf) else leaf, tree)


def is_floating(leaf: Any) -> bool:
    """Whether a leaf of nested arguments is a tensor of floating-point numbers."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _describe(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
