"""Where the fast engine steps into a pass: folded inputs, factored weight gradients, half-precision weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import SynflowError
from ..flow.measure import absolute, measure
from ..flow.passes import ByRule, PassHooks
from ..flow.tensor import Flow, as_flow
from ..network.private_copy import Network
from ..support.nested import mapped
from . import fold_positions
from .factored_gradient import FactoredGradient
from .factored_layers import factored_layer, widened
from .fallbacks import CannotServeError, Fallbacks
from .thresholds import Thresholds

HALF = (torch.float16, torch.bfloat16)


def reads_half(network: Network, masks: Mapping[str, Tensor], thresholds: Thresholds, fallbacks: Fallbacks) -> bool:
    """Whether half-precision weights can stay so: layers widen theirs part by part, other operations may not."""
    if not any(weight.dtype in HALF for weight in network.weights.values()):
        return False
    try:
        measure(network, magnitudes=absolute(network, masks, half=True), hooks=FastPass(thresholds))
    except SynflowError as cause:
        fallbacks.add("reading half-precision weights", CannotServeError(str(cause)))
        return False
    return True


class FastPass(PassHooks):
    """Hooks for one pass; afterwards `gradients` holds dR/d|w| of each weight tensor, as factors where possible.

    `memory` is what folding remembers from pass to pass; without it nothing is folded. `bounded` says that few scores
    will be multiplied out, so that factors may be nearly as large as their product.
    """

    def __init__(self, thresholds: Thresholds, memory: dict[Any, Any] | None = None, bounded: bool = False) -> None:
        self.gradients: dict[str, FactoredGradient] = {}
        self._thresholds, self._memory, self._bounded = thresholds, memory, bounded
        self._by_id: dict[int, FactoredGradient] = {}
        self._weights: dict[str, Tensor] = {}

    def begin(self, weights: Mapping[str, Flow]) -> None:
        """Make room for the gradient of each weight."""
        self.gradients = {name: FactoredGradient(leaf.shape, bounded=self._bounded) for name, leaf in weights.items()}
        self._by_id = {id(leaf): self.gradients[name] for name, leaf in weights.items()}
        self._weights = {name: leaf.detach().as_subclass(Tensor) for name, leaf in weights.items()}

    def input(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Flow | None:
        """An image of ones, folded; other inputs are plain."""
        if self._memory is None or len(shape) != 4 or not shape.numel():
            return None
        return fold_positions.input_of_ones(shape, dtype, device, self._memory)

    def operation(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rule: ByRule
    ) -> Any:
        """An operation on folded flows; those that cannot be folded are unfolded first."""
        if self._memory is None:
            return NotImplemented
        return fold_positions.operation(name, function, args, kwargs, rule, self._memory)

    def arguments(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Half-precision weights, which only layers read as they are, in the precision of the flow."""

        def wide(leaf: Any) -> Any:
            if not isinstance(leaf, Flow) or leaf.dtype not in HALF or id(leaf) not in self._by_id:
                return leaf
            return as_flow(widened(leaf, self._by_id[id(leaf)], torch.float32), leaf.exponent, leaf.degrees)

        found: tuple[Any, Any] = mapped(wide, (args, kwargs))
        return found

    def layer(self, function: Callable[..., Any], x: Flow, weight: Flow, settings: tuple[Any, ...]) -> Tensor | None:
        """A layer whose weight gradient is kept as factors."""
        gradient = self._by_id.get(id(weight))
        if gradient is None:
            return None
        return factored_layer(function, x.as_subclass(Tensor), weight, gradient, settings, self._thresholds)

    def output(self, flow: Flow) -> Flow:
        """An output at every position."""
        whole: Flow = fold_positions.unfolded(flow)
        return whole

    def gradient(self, name: str, gradient: Tensor) -> None:
        """Take the gradient that autograd made for a weight."""
        self.gradients[name].add_dense(gradient)
        self.gradients[name].add_flow((gradient * self._weights[name]).sum())
