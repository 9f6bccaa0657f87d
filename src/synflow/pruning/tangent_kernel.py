"""NTK-SAP: what each weight adds to the trace of the tangent kernel, at random weights and on random inputs.

The trace is estimated by how far a small random move of all weights moves the outputs (Wang et al. 2023). A library
does not know how a model was initialised, so new weights are drawn, with replacement, from the values of their tensor:
for weights that were drawn independently that is a new initialisation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import SynflowError
from ..network.private_copy import Network, isolated, restoring
from ..support.chunked import count
from ..support.private_torch import BatchNorm, pytree
from .gradients import is_floating, leaves_in_place, masked_weights

# An example of one input stands for a batch of this many: batch norms need several; more would need much memory.
INPUTS = 16


@restoring
def kernel_saliency(
    network: Network, masks: Mapping[str, Tensor] | None, draws: int, deviation: float
) -> dict[str, Tensor]:
    """|d/dm sum |f(x; w m) - f(x; (w + dw) m)|^2| over draws of w, x and dw; zero where a weight is pruned."""
    if draws < 1 or not deviation > 0:
        raise SynflowError(f"ntk_sap: draws must be at least 1 and deviation above 0, got {draws!r} and {deviation!r}")
    # The number of weights left is part of the seed, so that each step of a run draws anew.
    generator = torch.Generator().manual_seed(network.seed + (network.size if masks is None else count(masks)))
    leaves_in_place(network, masks, training=False)
    weights = masked_weights(network, None)
    kept = {name: torch.ones_like(w) if masks is None else masks[name].to(w.dtype) for name, w in weights.items()}
    switches = {name: mask.clone().requires_grad_() for name, mask in kept.items()}
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    with isolated(network.seed, network.device), _own_statistics(network) as norms:
        for _ in range(draws):
            drawn = {name: _drawn_anew(weight, generator) for name, weight in weights.items()}
            inputs = _random_inputs(network, generator, next(iter(weights.values())).dtype)
            moved = {name: weight + deviation * _normal(weight, generator) for name, weight in drawn.items()}
            with torch.no_grad():
                _outputs(network, drawn, kept, inputs, norms, train_norms=True)
            here = _outputs(network, drawn, switches, inputs, norms)
            there = _outputs(network, moved, switches, inputs, norms)
            distance = torch.stack([(a - b).square().sum() for a, b in zip(here, there, strict=True)]).sum()
            found = torch.autograd.grad(distance, list(switches.values()), allow_unused=True)
            for name, slope in zip(switches, found, strict=True):
                if slope is not None:
                    total[name] += slope
    return {name: value.mul_(kept[name]).abs_() for name, value in total.items()}


def _drawn_anew(weight: Tensor, generator: torch.Generator) -> Tensor:
    chosen = torch.randint(weight.numel(), weight.shape, generator=generator)
    return weight.flatten()[chosen.to(weight.device)]


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _random_inputs(network: Network, generator: torch.Generator, dtype: torch.dtype) -> Any:
    """Normal numbers for the floating inputs of the example; token ids and masks stay as given."""
    tensors = [leaf for leaf in pytree.tree_leaves(network.example) if isinstance(leaf, Tensor)]
    single = all(tensor.dim() > 1 and tensor.shape[0] == 1 for tensor in tensors)

    def draw(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and single:
            leaf = leaf.expand(INPUTS, *leaf.shape[1:])
        return _normal(leaf.to(dtype), generator) if is_floating(leaf) else leaf

    return pytree.tree_map(draw, network.example)


def _outputs(
    network: Network, weights: Mapping[str, Tensor], switches: Mapping[str, Tensor], inputs: Any,
    norms: list[BatchNorm], train_norms: bool = False,
) -> list[Tensor]:  # fmt: skip
    """The floating outputs at the switched weights; batch norms have the statistics of their last training pass."""
    for norm in norms:
        norm.train(train_norms)
    network.replace({name: weight * switches[name] for name, weight in weights.items()})
    try:
        result = network.call(inputs)
    except Exception as cause:
        raise SynflowError(
            f"ntk_sap: {type(network.model).__name__} fails on random inputs of the example's shape: "
            f"{type(cause).__name__}: {cause}. Pass an example whose first dimension is the batch"
        ) from cause
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = vars(result)
    outputs = [leaf for leaf in pytree.tree_leaves(result) if is_floating(leaf)]
    if not outputs:
        raise SynflowError(f"ntk_sap: {type(network.model).__name__} has no floating output")
    return outputs


@contextmanager
def _own_statistics(network: Network) -> Iterator[list[BatchNorm]]:
    """Batch norms that take over the statistics of each pass; their own are restored afterwards."""
    norms = [m for m in network.model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    before = [(norm.momentum, {key: value.clone() for key, value in norm.named_buffers()}) for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 1.0
        yield norms
    finally:
        for norm, (momentum, buffers) in zip(norms, before, strict=True):
            norm.momentum = momentum
            for key, value in norm.named_buffers():
                value.copy_(buffers[key])
