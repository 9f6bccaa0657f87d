"""A flow: a non-negative tensor that carries a power-of-two exponent, so that no depth overflows it.

The value is ``data * 2**exponent``. Powers of two round nothing, so wherever plain floating point would have held, the
digits are the same. Only the forward pass needs this: every cut conserves ``sum(x * dR/dx) = R``, so normalised
activations have normalised gradients.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..support.nested import leaves
from ..support.private_torch import DisableTorchFunction, disabled_torch_function

# Rescale when the largest entry leaves 2**-16 .. 2**16: a product of three such factors, summed over any tensor that
# fits in memory, stays far inside float32, and most operations need no extra pass.
WINDOW = 16

# An added constant this negative blocks: an attention mask (-inf, finfo.min, -10000), the start of a running maximum.
BLOCKING = -1e4

# The cap of degrees, which products of products double at each level: beyond it only "many" matters.
MANY = 1 << 20

# How often a term can meet each weight tensor: (fewest, most) as integer vectors over the prunable tensors.
Degrees = tuple["np.ndarray[Any, np.dtype[np.int64]]", "np.ndarray[Any, np.dtype[np.int64]]"]


class Flow(Tensor):
    """A non-negative tensor with value ``data * 2**exponent``; operations on it go through the table of rules."""

    exponent: int = 0
    degrees: Degrees | None = None
    # What the hooks of a pass keep with a flow that they hold in a form of their own.
    spread: Any = None
    # Whether this is one of the weights that a pass measures.
    is_weight: bool = False

    # The table of rules is applied by a mode (see dispatch.py); the class itself dispatches nothing, so inside a
    # rule a Flow behaves as its plain data.
    __torch_function__: Any = disabled_torch_function

    def __format__(self, spec: str) -> str:
        """The text of the data, for models that print what they compute: f"{x.mean():.3f}"."""
        with DisableTorchFunction():
            return format(self.detach().as_subclass(Tensor), spec)


class Choice(Flow):
    """A boolean tensor made from the values of a flow, `read`: it may be true where its data is, and false anywhere."""

    read: Flow


def as_flow(data: Tensor, exponent: int = 0, degrees: Degrees | None = None, spread: Any = None) -> Flow:
    """View a fresh tensor as a flow; the tensor object itself changes class, which costs nothing and adds no view."""
    if type(data) is Tensor:
        data.__class__ = Flow
    elif not isinstance(data, Flow):
        data = data.as_subclass(Flow)
    assert isinstance(data, Flow)
    data.exponent = exponent
    data.degrees = degrees
    data.spread = spread
    return data


def read_attribute(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A property such as `.shape` as it is; one that is a tensor (`.T`) is a flow again, and so is `.data`."""
    owner = args[0]
    if isinstance(owner, Flow) and getattr(func, "__self__", None) is Tensor.data:
        return owner
    value = func(*args, **kwargs)
    if isinstance(owner, Flow) and isinstance(value, Tensor) and not isinstance(value, Flow):
        return as_flow(value, owner.exponent, owner.degrees)
    return value


def fixed(flow: Tensor) -> Tensor:
    """The data of a flow as a constant, also where operations on flows are looked up in the table."""
    with DisableTorchFunction():
        return flow.detach().as_subclass(Tensor)


def scaled(data: Tensor, power: int) -> Tensor:
    """``data * 2**power``, exactly, as far as the type holds it (underflow gives zero)."""
    while power:
        part = max(-100, min(100, power))
        data = data * math.ldexp(1.0, part)
        power -= part
        if power < -2200:
            return data * 0.0  # below the smallest number of any type
    return data


class _Reading(threading.local):
    """Whether a number is being read off a flow that decides on no more than a power of two."""

    harmless = False


READING = _Reading()


def number(data: Tensor) -> float:
    """A number read off a flow that decides on no more than a power of two."""
    READING.harmless = True
    try:
        return float(data)
    finally:
        READING.harmless = False


def anything(constant: Tensor) -> bool:
    """Whether a constant has an entry other than zero."""
    return bool(number(torch.any(constant != 0)))


def unblocking(constant: Tensor) -> Tensor:
    """A constant with zeros where it is so negative that nothing passes."""
    return constant.masked_fill(constant <= BLOCKING, 0.0)


def peak(data: Tensor) -> float:
    """The largest entry, or zero when there is none."""
    return number(data.detach().amax()) if data.numel() else 0.0


def rescaled(data: Tensor, exponent: int, degrees: Degrees | None = None) -> Flow:
    """A flow of the same value whose largest entry is near one."""
    top = peak(data)
    if not math.isfinite(top):
        raise FloatingPointError(f"the flow became {top} (exponent {exponent})")
    shift = math.frexp(top)[1] if top else 0
    if abs(shift) > WINDOW:
        data, exponent = scaled(data, -shift), exponent + shift
    return as_flow(data, exponent, degrees)


def flows(arguments: Any) -> list[Flow]:
    """All flows inside nested arguments, in order."""
    return [leaf for leaf in leaves(arguments) if isinstance(leaf, Flow)]


def common_exponent(items: Iterable[Flow]) -> int:
    """The exponent at which flows can be added: the largest of those that are not zero everywhere."""
    items = list(items)
    if len(items) == 1:
        return items[0].exponent
    live = [item.exponent for item in items if peak(item) > 0]
    return max(live) if live else max((item.exponent for item in items), default=0)


def either(items: Iterable[Flow]) -> Degrees | None:
    """Degrees of a sum: a term of the sum is a term of one of its parts."""
    known = [item.degrees for item in items if item.degrees is not None]
    if not known:
        return None
    return np.min([low for low, _ in known], axis=0), np.max([high for _, high in known], axis=0)


def both(items: Iterable[Flow]) -> Degrees | None:
    """Degrees of a product: a term of the product joins one term of each factor."""
    known = [item.degrees for item in items if item.degrees is not None]
    if not known:
        return None
    low = np.minimum(np.sum([low for low, _ in known], axis=0), MANY)
    return low, np.minimum(np.sum([high for _, high in known], axis=0), MANY)


class _Saturate(torch.autograd.Function):
    """One where positive, forward and backward: with non-negative terms nothing cancels, so this is reachability."""

    @staticmethod
    def forward(ctx: Any, data: Tensor) -> Tensor:
        return (data > 0).to(data.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return (gradients[0] > 0).to(gradients[0].dtype)


def saturated(data: Tensor) -> Tensor:
    """One where the data is positive, zero elsewhere; gradients likewise."""
    result: Tensor = _Saturate.apply(data)
    return result
