"""The three rules that carry most operations: identity, homogeneous (sums), product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...support.nested import leaves, mapped
from ..dispatch import Function, active_mode, findings, options, source
from ..tensor import (
    BLOCKING,
    Flow,
    anything,
    as_flow,
    both,
    common_exponent,
    either,
    fixed,
    flows,
    normalised,
    saturated,
    scaled,
    unblocking,
)


def identity(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Activations: positive input, slope one, so flow passes unchanged (the first flow among the arguments)."""
    return flows((args, kwargs))[0]


identity.keeps_positions = True  # type: ignore[attr-defined]


def homogeneous(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Sums, means, concatenation, selection: the operation itself, with all exponents made equal."""
    exponent, args, kwargs, degrees = _aligned(args, kwargs, adds=function is torch.add)

    def wrap(data: Any) -> Any:
        if not isinstance(data, Tensor) or not data.is_floating_point():
            return data
        return settled(data, exponent, degrees)

    return mapped(wrap, function(*args, **kwargs))


def rearranged(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Reshaping, indexing, copying of one flow: the operation itself; nothing grows, so nothing is rescaled."""
    (source,) = flows((args, kwargs))

    def wrap(data: Any) -> Any:
        if not isinstance(data, Tensor) or isinstance(data, Flow):
            return data
        return as_flow(data, source.exponent, source.degrees)

    return mapped(wrap, function(*args, **kwargs))


for _rule in (identity, homogeneous, rearranged):
    # What a shift was added to before is added up or passed on, not multiplied.
    _rule.adds_only = True  # type: ignore[attr-defined]


def product(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Operations linear in each factor: the operation itself on absolute constants; exponents add."""
    factors = flows((args, kwargs))
    dtype = factors[0].dtype
    args, kwargs = mapped(lambda leaf: positive(leaf, dtype), (args, kwargs))
    if options().shared and sum(not factor.is_leaf for factor in factors) > 1:
        args, kwargs = mapped(_half, (args, kwargs))
    return settled(function(*args, **kwargs), sum(f.exponent for f in factors), both(factors))


def by_name(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call under the names that torch gives them, in their order."""
    return {**dict(zip(names.split(), args, strict=False)), **kwargs}


def _half(leaf: Any) -> Any:
    """The same value, half the gradient."""
    if not isinstance(leaf, Flow) or leaf.is_leaf:
        return leaf
    return as_flow(leaf.as_subclass(Tensor) * 0.5 + fixed(leaf) * 0.5, leaf.exponent, leaf.degrees)


def settled(data: Tensor, exponent: int, degrees: Any = None) -> Flow:
    """The result of an arithmetic operation as a flow: rescaled, or in the booleans reduced to zero and one."""
    if options().saturate:
        return as_flow(saturated(data), 0, degrees)
    return normalised(data, exponent, degrees)


def positive(leaf: Any, dtype: torch.dtype) -> Any:
    """A constant factor counts with its absolute value; flows and everything else stay."""
    if isinstance(leaf, Flow) or not isinstance(leaf, Tensor):
        return leaf
    return leaf.abs().to(dtype) if leaf.is_floating_point() or leaf.is_complex() else leaf


def shift(constant: Tensor, dtype: torch.dtype, exponent: int) -> Tensor:
    """A constant that is added: absolute, at the given exponent, zero in a pass that follows inputs only."""
    constant = constant.detach().to(dtype)
    if not options().shifts:
        return torch.zeros_like(constant)
    findings().had_shifts = findings().had_shifts or anything(constant)
    return scaled(constant.abs().nan_to_num(0.0, 0.0, 0.0), -exponent)


def _enters(constant: Tensor, adds: bool) -> bool:
    """Whether a constant is a source (a token, a table) and not a bias: one that is added varies in two dimensions."""
    return not adds or sum(size > 1 for size in constant.shape) > 1


def _aligned(args: Any, kwargs: Any, adds: bool) -> tuple[int, Any, Any, Any]:
    items = flows((args, kwargs))
    exponent, dtype, degrees = common_exponent(items), items[0].dtype, either(items)
    counted = any(
        anything(unblocking(leaf))
        for leaf in leaves((args, kwargs))
        if isinstance(leaf, Tensor)
        and not isinstance(leaf, Flow)
        and leaf.is_floating_point()
        and (options().sources if _enters(leaf, adds) else options().shifts)
    )
    if counted:
        # A constant may outweigh the flow; then it sets the exponent (constants have exponent zero). It brings terms
        # that meet no weight.
        exponent = max(exponent, 0)
        degrees = None if degrees is None else (degrees[0] * 0, degrees[1])

    def align(leaf: Any) -> Any:
        if isinstance(leaf, Flow):
            if leaf.exponent > exponent:
                # Only a flow that is zero everywhere is left out of the common exponent; scaling it up would give
                # its gradient an infinite factor.
                return leaf * 0.0
            return leaf if leaf.exponent == exponent else scaled(leaf, leaf.exponent - exponent)
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return (source if _enters(leaf, adds) else shift)(leaf, dtype, exponent)
        return leaf

    args, kwargs = mapped(align, (args, kwargs))
    return exponent, args, kwargs, degrees


def add(function: Function, first: Any, second: Any, *, alpha: Any = 1, **_: Any) -> Any:
    """Sum and difference: a coefficient of -1 counts with its absolute value; mask constants block."""
    second, blocked = _unblocked(second)
    first, also = _unblocked(first)
    if alpha != 1:
        second = times(second, alpha)
    total = homogeneous(torch.add, _tensor(first, second), _tensor(second, first))
    for mask in (blocked, also):
        if mask is not None:
            total = as_flow(total.masked_fill(mask, 0.0), total.exponent, total.degrees)
    return total


def _unblocked(value: Any) -> tuple[Any, Tensor | None]:
    """Split an added constant into what adds and where it blocks."""
    if isinstance(value, Flow) or not isinstance(value, Tensor) or not value.is_floating_point():
        return value, None
    mask = value <= BLOCKING
    if not anything(mask):
        return value, None
    return value.masked_fill(mask, 0.0), mask


def _tensor(value: Any, like: Any) -> Tensor:
    """Python numbers as tensors, so that a sum treats them like any constant."""
    if isinstance(value, Flow) or (isinstance(value, Tensor) and value.is_floating_point()):
        return value
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def times(value: Any, factor: Any) -> Any:
    """A product of two things, each a flow, a constant or a number."""
    if not isinstance(value, Flow) and not isinstance(factor, Flow):
        return value * factor
    value, factor = _weighty(value), _weighty(factor)
    return product(torch.mul, value if isinstance(value, Tensor) else abs(value), factor)


def _weighty(value: Any) -> Any:
    """A gain that is a parameter and the same tiny number everywhere (ReZero, layer scale) counts as one."""
    if isinstance(value, Flow):
        return value
    if isinstance(value, torch.nn.Parameter) and value.numel() and is_switched_off(value):
        note_zero_gain(tiny=bool(value.any()))
        return torch.ones_like(value)
    return abs(value) if not isinstance(value, Tensor) else value if value.dtype == torch.bool else value.abs()


def is_switched_off(gain: Tensor) -> bool:
    """Whether a gain was initialised so that its branch does nothing at first: zero, or one tiny number, everywhere."""
    first = gain.detach().reshape(-1)[0]
    return bool(first.abs() <= 1e-3) and bool((gain == first).all())


def note_zero_gain(tiny: bool = False) -> None:
    """Remember, for the certificate, that a gain that is switched off counted as one."""
    mode = active_mode()
    size = "tiny" if tiny else "zero"
    mode.flow_pass.found.notes[f"{mode.where()}: a gain that is {size} everywhere counts as one"] = None
