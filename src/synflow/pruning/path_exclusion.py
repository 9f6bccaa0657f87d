"""PX (path exclusion): the flow of squared weights, where an output counts by what active paths bring it from the data.

The trace of the tangent kernel is at most the sum over outputs of two factors (Iurada et al. 2024): the squared inputs
summed over the paths that are active on the data, and the squared weights multiplied along all paths. The first is a
flow pass with all weights one, squared inputs, and the activations open where they are open on the data; the second is
the flow of squared weights. Both take the stand-ins of the flow for all other operations (norms, pooling, attention).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import SynflowError
from ..flow.dispatch import active_mode
from ..flow.measure import absolute, measure
from ..flow.passes import WITHOUT_SHIFTS, ByRule, PassHooks
from ..flow.tensor import Flow, as_flow, common_exponent, scaled
from ..network.private_copy import Network, isolated, restoring
from ..support.private_torch import pytree
from ..support.torch_modes import SafeMode
from .gradients import is_floating, leaves_in_place, to_precision

# Operations that let a path pass where their input is positive.
_PLAIN = "relu relu6 leaky_relu prelu rrelu gelu silu mish elu selu celu hardswish".split()
ACTIVATIONS = frozenset(_PLAIN + [f"{name}_" for name in _PLAIN])


def path_saliency(network: Network, masks: Mapping[str, Tensor] | None, training: bool) -> dict[str, Tensor]:
    """w^2 dR/dw^2, R the sum over outputs of both factors; `training`: the mode in which activations are seen."""
    factors: list[Flow] = []
    for inputs, _ in network.batches:
        inputs = to_precision(inputs, network)
        squares = [leaf.square() for leaf in pytree.tree_leaves(inputs) if is_floating(leaf)]
        hooks = _PathHooks(squares, _open_activations(network, masks, training, inputs))
        ones = {name: (size > 0).to(size.dtype) for name, size in absolute(network, masks).items()}
        batch = dataclasses.replace(network, example=inputs)
        measure(batch, magnitudes=ones, options=WITHOUT_SHIFTS, gradients=False, hooks=hooks)
        factors = [_sum(pair) for pair in zip(factors, hooks.outputs, strict=True)] if factors else hooks.outputs
    hooks = _PathHooks(factors=factors)
    weights = absolute(network, masks, power=2)
    measure(network, magnitudes=weights, options=WITHOUT_SHIFTS, hooks=hooks)
    return {name: weight.mul_(hooks.gradients.get(name, 0.0)) for name, weight in weights.items()}


class _PathHooks(PassHooks):
    """Feeds a flow pass with inputs and open activations, collects its outputs, or weighs them."""

    def __init__(
        self, inputs: list[Tensor] | None = None, gates: Iterable[Tensor] = (), factors: list[Flow] | None = None
    ) -> None:
        self._inputs = None if inputs is None else iter(inputs)
        self._gates = iter(gates)
        self._factors = None if factors is None else iter(factors)
        self.outputs: list[Flow] = []
        self.gradients: dict[str, Tensor] = {}

    def input(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Flow | None:
        """The squared inputs in the place of ones."""
        return None if self._inputs is None else as_flow(next(self._inputs).to(dtype))

    def operation(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rule: ByRule
    ) -> Any:
        """Flow passes an activation where it was open on the data."""
        if self._inputs is None or name not in ACTIVATIONS:
            return NotImplemented
        flow, gate = _first(args, kwargs), next(self._gates, None)
        if gate is None or gate.shape != flow.shape:
            raise SynflowError(
                f"px: the activations of {active_mode().where()} differ between a pass of the data and a pass of the "
                "flow, so active paths cannot be followed; choose another score"
            )
        gated = as_flow(flow.as_subclass(Tensor) * gate, flow.exponent)
        return active_mode().written.overwrite(flow, gated) if name.endswith("_") else gated

    def output(self, flow: Flow) -> Flow:
        """Collect an output, summed over the batch, or weigh it."""
        if self._factors is None:
            plain = flow.detach().as_subclass(Tensor)
            self.outputs.append(as_flow(plain.sum(0, keepdim=True) if plain.dim() else plain + 0, flow.exponent))
            return flow
        factor = next(self._factors, None)
        if factor is None or factor.shape[1:] != flow.shape[1:]:
            got = None if factor is None else tuple(factor.shape[1:])
            raise SynflowError(
                f"px: an output on the example has shape {tuple(flow.shape[1:])} behind the batch, on the data {got}; "
                "pass an example of the same size as the inputs of the data"
            )
        return as_flow(flow.as_subclass(Tensor) * factor.as_subclass(Tensor), flow.exponent + factor.exponent)

    def gradient(self, name: str, gradient: Tensor) -> None:
        """Keep dR/dw^2."""
        self.gradients[name] = gradient


class _Recorder(SafeMode):
    """Notes where activations are open."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.entered and getattr(func, "__name__", "") in ACTIVATIONS:
            self.gates.append(_first(args, kwargs).detach() > 0)
        return func(*args, **kwargs)


@restoring
def _open_activations(
    network: Network, masks: Mapping[str, Tensor] | None, training: bool, inputs: Any
) -> list[Tensor]:
    """For each activation that the pruned network runs on the inputs, in order, where it is open."""
    # Gradients are on: without them torch may run transformer layers whole, where no activation is seen.
    recorder = _Recorder()
    with isolated(network.seed, network.device), recorder:
        leaves_in_place(network, masks, training)
        network.call(inputs)
    return recorder.gates


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else kwargs["input"]


def _sum(pair: tuple[Flow, Flow]) -> Flow:
    exponent = common_exponent(pair)
    left, right = (scaled(part.as_subclass(Tensor), part.exponent - exponent) for part in pair)
    return as_flow(left + right, exponent)
