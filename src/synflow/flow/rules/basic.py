"""The three rules that carry most operations: identity, homogeneous (sums), product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...support.nested import leaves, mapped
from ..dispatch import Function, active_mode, flow_pass, options
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
    rescaled,
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
    result = function(*args, **kwargs)
    return mapped(lambda data: settled(data, exponent, degrees) if _is_floating(data) else data, result)


def rearranged(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Reshaping, indexing, copying of one flow: the operation itself; nothing grows, so nothing is rescaled."""
    (flow,) = flows((args, kwargs))

    def wrap(data: Any) -> Any:
        fresh = isinstance(data, Tensor) and not isinstance(data, Flow)
        return as_flow(data, flow.exponent, flow.degrees) if fresh else data

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
    """The result of an arithmetic operation as a flow: rescaled, or in boolean arithmetic reduced to zero and one."""
    if options().saturate:
        return as_flow(saturated(data), 0, degrees)
    return rescaled(data, exponent, degrees)


def positive(leaf: Any, dtype: torch.dtype) -> Any:
    """A constant factor counts with its absolute value; flows and everything else stay."""
    if isinstance(leaf, Flow) or not isinstance(leaf, Tensor):
        return leaf
    return leaf.abs().to(dtype) if leaf.is_floating_point() or leaf.is_complex() else leaf


def shift(constant: Tensor, dtype: torch.dtype, exponent: int) -> Tensor:
    """A constant that is added: absolute, at the given exponent, zero in a pass that follows inputs only."""
    constant, now = constant.detach().to(dtype), flow_pass()
    if not now.options.shifts:
        return torch.zeros_like(constant)
    now.had_shifts = now.had_shifts or anything(constant)
    return scaled(constant.abs().nan_to_num(0.0, 0.0, 0.0), -exponent)


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _aligned(args: Any, kwargs: Any, adds: bool) -> tuple[int, Any, Any, Any]:
    """The arguments of a sum at one exponent: this exponent, the arguments, and the degrees of the sum."""
    items, now = flows((args, kwargs)), flow_pass()
    exponent, dtype, degrees = common_exponent(items), items[0].dtype, either(items)

    def enters(constant: Tensor) -> bool:
        """Whether it is a source (a token, a table) and not a bias: one that is added varies in two dimensions."""
        return not adds or sum(size > 1 for size in constant.shape) > 1

    for leaf in leaves((args, kwargs)):
        if _is_floating(leaf) and not isinstance(leaf, Flow):
            counts = now.options.sources if enters(leaf) else now.options.shifts
            if counts and anything(unblocking(leaf)):
                # A constant may outweigh the flow; then it sets the exponent (constants have exponent zero). It brings
                # terms that meet no weight.
                exponent = max(exponent, 0)
                degrees = None if degrees is None else (degrees[0] * 0, degrees[1])
                break

    def align(leaf: Any) -> Any:
        if isinstance(leaf, Flow):
            if leaf.exponent > exponent:
                # Only a flow that is zero everywhere is left out of the common exponent; scaling it up would give
                # its gradient an infinite factor.
                return leaf * 0.0
            return scaled(leaf, leaf.exponent - exponent)
        if _is_floating(leaf):
            return (now.source if enters(leaf) else shift)(leaf, dtype, exponent)
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
    mask = value <= BLOCKING if _is_floating(value) and not isinstance(value, Flow) else None
    return (value, None) if mask is None or not anything(mask) else (value.masked_fill(mask, 0.0), mask)


def _tensor(value: Any, like: Any) -> Tensor:
    """Python numbers as tensors, so that a sum treats them like any constant."""
    known = isinstance(value, Flow) or _is_floating(value)
    return value if known else torch.as_tensor(value, dtype=like.dtype, device=like.device)


def times(value: Any, factor: Any) -> Any:
    """A product of two things, each a flow, a constant or a number."""
    if not isinstance(value, Flow) and not isinstance(factor, Flow):
        return value * factor
    return product(torch.mul, _weighty(value), _weighty(factor))


def _weighty(value: Any) -> Any:
    """A gain that was initialised to the same tiny number everywhere (ReZero, layer scale) counts as one."""
    if isinstance(value, Flow) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        return value
    if isinstance(value, torch.nn.Parameter) and value.numel():
        first = value.detach().reshape(-1)[0]
        # Layer scale starts at 1e-6 to 1e-4; a larger gain is taken as it is.
        if bool(first.abs() <= 1e-3) and bool((value == first).all()):
            note_zero_gain(tiny=bool(value.any()))
            return torch.ones_like(value)
    return abs(value)


def at_one(x: Any) -> Any:
    """A gate that is one where flow arrives, so that a product of many (a scan over time) is one as well."""
    return x / x if isinstance(x, Flow) else x


def note_zero_gain(tiny: bool = False) -> None:
    """Remember, for the certificate, that a gain that is switched off counted as one."""
    mode = active_mode()
    size = "tiny" if tiny else "zero"
    mode.flow_pass.notes[f"{mode.where()}: a gain that is {size} everywhere counts as one"] = None
