"""Tensors that a forward pass writes into: constants become flows, and weights have another value from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..errors import SynflowError
from .passes import FlowPass
from .tensor import Flow, anything, as_flow, fixed, scaled, unblocking


class Written:
    """What one pass has written into; `anything` says whether arguments have to be looked up with `current`."""

    def __init__(self, flow_pass: FlowPass, where: Callable[[], str]) -> None:
        self.anything = False
        self._pass, self._where = flow_pass, where
        # The value of a weight after it has been written to, with the weight, so that its id stays its own.
        self._weights: dict[int, tuple[Flow, Flow]] = {}

    def overwrite(self, target: Tensor, value: Any) -> Tensor:
        """Put a flow into an existing tensor, which becomes a flow."""
        if value is target or not isinstance(value, Flow):
            return target
        if not isinstance(target, Flow):
            target = self.becoming_flow(target, value, whole=True)
        assert isinstance(target, Flow)
        if target.is_weight:
            return self.rewrite(target, value)
        self.refuse_part_of_weight(target)
        shift = value.exponent - target.exponent
        if abs(shift) > 40:
            if target._is_view():
                # A view shares its exponent with the whole, where this would not fit; `x += y` takes what returns.
                return value
            target.exponent, shift = value.exponent, 0
        target.copy_(scaled(value, shift).to(target.dtype))
        target.degrees = value.degrees
        return target

    def rewrite(self, weight: Flow, value: Flow) -> Flow:
        """Give a weight another value for the rest of the pass; the next pass begins with the weight itself."""
        if weight.shape != value.shape:
            raise SynflowError(
                f"in {self._where()} the forward pass changes the shape of a prunable weight from "
                f"{tuple(weight.shape)} to {tuple(value.shape)}; leave the layer out with protect=..."
            )
        self._weights[id(weight)] = weight, value
        self.anything = True
        return value

    def refuse_part_of_weight(self, target: Flow) -> None:
        """A part of a weight cannot be written to: the weight itself would be."""
        base = target._base if target._is_view() else None
        if isinstance(base, Flow) and base.is_weight:
            raise SynflowError(
                f"in {self._where()} the forward pass writes into a part of a prunable weight, which would change it "
                "at each of many passes; do this once before pruning, write the whole (weight.data = ...), or leave "
                "the layer out with protect=..."
            )

    def set_attribute(self, function: Callable[..., Any], owner: Tensor, value: Any) -> None:
        """`x.data = y`; gradients and whether they are wanted are the business of the pass."""
        if getattr(function, "__self__", None) is not Tensor.data:
            return
        if not isinstance(value, Flow):
            raise self.no_way_on()
        self.overwrite(owner, value)

    def no_way_on(self) -> SynflowError:
        """The error for a weight, or another flow, that is given values of something else."""
        return SynflowError(
            f"in {self._where()} the forward pass gives a weight, or a tensor through which flow passes, values that "
            "do not depend on it, so that no path leads on; assign them before pruning, or leave the layer out with "
            "protect=..."
        )

    def becoming_flow(self, target: Tensor, value: Flow, whole: bool = False) -> Flow:
        """A constant into which a flow is written, as a flow; where it is a view, so does the tensor that it shows.

        What it held enters beside the flow, but for what will be overwritten as a `whole`.
        """
        base = target._base if target._is_view() else target
        if base is None or not _is_dense(base):
            raise SynflowError(
                f"in {self._where()} a flow is written into a view of a constant tensor whose entries share memory or "
                "have gaps between them; write into the tensor itself (out[...] = value), or build it with torch.cat"
            )
        # Fresh memory in the flow's own precision, made from the flow, so that a recording can make it again, and with
        # the same order of dimensions, so that views of it show the same entries.
        strides = base.stride()
        order = sorted(range(base.dim()), key=lambda dim: (-strides[dim], dim))
        places = sorted(range(base.dim()), key=order.__getitem__)
        fresh = value.as_subclass(Tensor).new_zeros([base.size(dim) for dim in order]).permute(places)
        base.data = fresh.copy_(base.abs() if base.is_complex() else base)
        lost = whole and base is target
        counted = not lost and self._pass.options.sources and anything(unblocking(base))
        # A constant that counts may outweigh the flow; constants have exponent zero.
        flow = as_flow(base, max(value.exponent, 0) if counted else value.exponent)
        if not lost:
            flow.copy_(self._pass.source(fixed(flow), flow.dtype, flow.exponent))
        self.anything = True  # views of it that were made before show the flow, too
        if base is target:
            return flow
        view: Flow = self.current(target)
        return view

    def current(self, leaf: Any) -> Any:
        """An argument as it is now: a weight that was written to, a view of a constant that has become a flow since."""
        if type(leaf) is Flow:
            return self._weights[id(leaf)][1] if id(leaf) in self._weights else leaf
        if type(leaf) is not Tensor or not leaf._is_view() or not isinstance(leaf._base, Flow):
            return leaf
        base = leaf._base
        shown = base.as_subclass(Tensor).as_strided(leaf.size(), leaf.stride(), leaf.storage_offset())
        return as_flow(shown, base.exponent, base.degrees)


def _is_dense(tensor: Tensor) -> bool:
    """Whether each entry has its own place in memory and there are no gaps, in some order of the dimensions."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: (pair[1], pair[0])):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
