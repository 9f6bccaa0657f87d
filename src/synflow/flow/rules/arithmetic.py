"""Products, quotients, powers and sums written out by hand in a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..dispatch import WEIGHTED, NoRuleError, Rule, active_mode, composite, findings, options
from ..tensor import Flow, anything, as_flow, both, fixed
from .basic import add, homogeneous, positive, product, settled, shift, times
from .constants import LARGE, positive_linear


def multiply(function: Callable[..., Any], first: Any, second: Any, **_: Any) -> Any:
    """Products stay products: each factor carries the whole flow."""
    return times(first, second)


def weighted(
    function: Callable[..., Any], x: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Any:
    """Linear and convolution: one call, with the bias brought to the exponent of the product."""
    if active_mode().flow_pass.watched is not None:
        return _tapped(function, x, weight, bias, *args, **kwargs)
    taken = None if kwargs else _taken_over(function, x, weight, args)
    if taken is None:
        return _weighted(function, *_readable(x, weight), bias, *args, **kwargs)
    if bias is None or not (isinstance(bias, Flow) or anything(bias)):
        return taken
    return _with_flow_bias(function, taken, bias)


def _taken_over(function: Callable[..., Any], x: Any, weight: Any, settings: tuple[Any, ...] = ()) -> Flow | None:
    """The layer without its bias, by the hooks of the pass, if there are any and they want it."""
    hooks = active_mode().flow_pass.hooks
    if hooks is None or not isinstance(x, Flow) or not isinstance(weight, Flow):
        return None
    data = hooks.layer(function, x, weight, settings)
    return None if data is None else settled(data, x.exponent + weight.exponent, both([x, weight]))


def _readable(*items: Any) -> Any:
    return active_mode().readable(items, {})[0]


def matrix_product(function: Callable[..., Any], first: Any, second: Any) -> Any:
    """A matrix product; one with a weight (stored input first) is a layer."""
    taken = _taken_over(function, first, second)
    return product(function, *_readable(first, second)) if taken is None else taken


def _tapped(function: Callable[..., Any], x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same, and the flow y dR/dy of each unit is noted; a copy goes on, so that nothing writes into y later."""
    sent = _weighted(function, x, weight, *args, **kwargs)
    name = (active_mode().flow_pass.watched or {}).get(id(weight))
    if name is None:
        return sent
    flows, data = findings().unit_flows, fixed(sent)
    others = [axis for axis in range(sent.dim()) if axis != _unit_dimension(function, sent)]

    def note(gradient: Tensor) -> None:
        flow = (data.double() * gradient.as_subclass(Tensor).double()).sum(others)
        flows[name] = flows[name] + flow if name in flows else flow

    if sent.requires_grad:
        sent.register_hook(note)
    return as_flow(sent.as_subclass(Tensor).clone(), sent.exponent, sent.degrees)


def _weighted(
    function: Callable[..., Any], x: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Any:
    factors = [f for f in (x, weight) if isinstance(f, Flow)]
    if not isinstance(x, Flow) and anything(x):
        findings().loose = True  # learned queries and the like: a flow that no input feeds
    large = function is torch.nn.functional.linear and not isinstance(weight, Flow) and weight.numel() >= LARGE
    if large and bias is None and isinstance(x, Flow):
        return settled(positive_linear(x.as_subclass(Tensor), weight.to(x.dtype)), x.exponent, x.degrees)
    if bias is None or isinstance(bias, Flow) or not factors:
        result = product(function, x, weight, None, *args, **kwargs)
        return result if bias is None else _with_flow_bias(function, result, bias)
    exponent = sum(f.exponent for f in factors)
    if exponent < -60:
        # The bias would overflow at the exponent of the product: add it apart.
        return _with_flow_bias(function, product(function, x, weight, None, *args, **kwargs), bias)
    dtype = factors[0].dtype
    data = function(positive(x, dtype), positive(weight, dtype), shift(bias, dtype, exponent), *args, **kwargs)
    low_high = _degrees_with_shift(factors, bool(options().shifts))
    return settled(data, exponent, low_high)


def _degrees_with_shift(factors: list[Flow], shifts: bool) -> Any:
    """Degrees of a product to which a shift was added: a shift is a term that meets no weight."""
    degrees = both(factors)
    if degrees is None or not shifts:
        return degrees
    return degrees[0] * 0, degrees[1]


def _with_flow_bias(function: Callable[..., Any], result: Flow, bias: Tensor) -> Any:
    shape = [1] * result.dim()
    shape[_unit_dimension(function, result)] = -1
    viewed = bias.reshape(shape)
    if isinstance(bias, Flow):
        viewed = as_flow(viewed, bias.exponent, bias.degrees)
    return homogeneous(torch.add, result, viewed)


def _unit_dimension(function: Callable[..., Any], result: Tensor) -> int:
    """Where the units of a layer's output are: the channels of a convolution, the last dimension otherwise."""
    name = getattr(function, "__name__", "")
    if "conv" not in name:
        return result.dim() - 1
    return result.dim() - 1 - int(name[-2])


def divide(function: Callable[..., Any], first: Any, second: Any, **_: Any) -> Any:
    """A divisor that is a flow is a scale, not a path: it is applied without a gradient."""
    if isinstance(second, Flow):
        return times(first, reciprocal(torch.reciprocal, second))
    return product(torch.div, first, torch.as_tensor(second, dtype=first.dtype, device=first.device))


def reverse_divide(function: Callable[..., Any], divisor: Any, dividend: Any) -> Any:
    """`dividend / divisor` as Python spells it."""
    return divide(function, dividend, divisor)


def reciprocal(function: Callable[..., Any], x: Flow, power: float = 1.0) -> Flow:
    """``x ** -power`` without a gradient; where there is no flow the quotient is zero, as its numerator is."""
    if not options().divide or options().saturate:
        return as_flow(torch.ones_like(fixed(x)))
    findings().note_bend()
    data = fixed(x)
    whole = -x.exponent * power
    exponent = math.floor(whole)
    inverse = torch.where(data > 0, data.clamp_min(torch.finfo(data.dtype).tiny) ** -power, torch.zeros_like(data))
    return as_flow(inverse * 2.0 ** (whole - exponent), exponent)


def rsqrt(function: Callable[..., Any], x: Flow) -> Flow:
    """The usual divisor of a hand-written norm."""
    return reciprocal(function, x, 0.5)


def power(function: Callable[..., Any], x: Any, exponent: Any) -> Any:
    """Powers: convex ones as they are (a term meets the base several times), concave ones as a scaled identity.

    For 0 < p < 1 the loss x**p - (x - d)**p is at most d * x**(p-1), so the union bound still holds.
    """
    if isinstance(exponent, Tensor) and not isinstance(exponent, Flow) and exponent.numel() == 1:
        exponent = float(exponent)
    if isinstance(exponent, Tensor) or not isinstance(x, Flow):
        raise NoRuleError("no rule for a power whose exponent is a tensor; register a rule for 'pow'")
    if exponent < 0:
        return reciprocal(function, x, -float(exponent))
    if exponent == 1 or options().saturate:
        return x
    whole = x.exponent * exponent
    integer = math.floor(whole)
    if exponent > 1:
        data = x.as_subclass(Tensor) ** exponent
        degrees = None if x.degrees is None else tuple((d * math.ceil(exponent)) for d in x.degrees)
        return settled(data * 2.0 ** (whole - integer), integer, degrees)
    rate = reciprocal(function, x, 1.0 - exponent) if exponent > 0 else reciprocal(function, x, 1.0)
    return product(torch.mul, x, rate)


def square_root(function: Callable[..., Any], x: Flow) -> Any:
    """The square root, see `power`."""
    return power(function, x, 0.5)


def square(function: Callable[..., Any], x: Flow) -> Any:
    """The square, see `power`."""
    return power(function, x, 2)


def reverse_subtract(function: Callable[..., Any], first: Any, second: Any, *, alpha: Any = 1) -> Any:
    """`second - first`: a difference counts as a sum."""
    return add(function, second, first, alpha=alpha)


def reverse_matmul(function: Callable[..., Any], second: Any, first: Any) -> Any:
    """`first @ second` as Python spells it when only the second is a flow."""
    return product(torch.matmul, first, second)


@composite
def add_product(
    function: Callable[..., Any], start: Any = None, *factors: Any, beta: Any = 1, alpha: Any = 1, **named: Any
) -> Any:
    """addmm, baddbmm, addmv: a sum and a matrix product (torch names the factors differently in each)."""
    start = named.pop("input", start)
    result = torch.matmul(*factors, *named.values())
    if alpha != 1:
        result = result * abs(alpha)
    return result if beta == 0 else start * abs(beta) + result


@composite
def add_scaled_product(function: Callable[..., Any], start: Any, first: Any, second: Any, *, value: Any = 1) -> Any:
    """addcmul: a sum and an elementwise product."""
    return start + first * second * abs(value)


@composite
def interpolate_between(function: Callable[..., Any], start: Any, end: Any, weight: Any) -> Any:
    """lerp: both ends, each with its weight."""
    return start * (1 - weight) + end * weight if not isinstance(weight, Flow) else start * weight + end * weight


def mean_square(function: Callable[..., Any], x: Flow, *args: Any, **kwargs: Any) -> Any:
    """Variance, as it appears in hand-written norms: the mean of the squares."""
    dim = args[0] if args and not isinstance(args[0], bool) else kwargs.get("dim")
    keepdim = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
    squares = power(function, x, 2)
    if dim is None:
        return homogeneous(torch.mean, squares)
    return homogeneous(torch.mean, squares, dim=dim, keepdim=keepdim)


def deviation(function: Callable[..., Any], x: Flow, *args: Any, **kwargs: Any) -> Any:
    """Standard deviation: the root of `mean_square`."""
    return power(function, mean_square(function, x, *args, **kwargs), 0.5)


def mean_and(function: Callable[..., Any], x: Flow, *args: Any, **kwargs: Any) -> Any:
    """var_mean and std_mean: the spread and the mean."""
    spread = deviation if "std" in function.__name__ else mean_square
    dim = args[0] if args and not isinstance(args[0], bool) else kwargs.get("dim")
    keepdim = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
    mean = homogeneous(torch.mean, x) if dim is None else homogeneous(torch.mean, x, dim=dim, keepdim=keepdim)
    return spread(function, x, *args, **kwargs), mean


_PRODUCTS = """
bmm mv dot vdot inner outer ger einsum tensordot kron chain_matmul multi_dot
""".split()

TABLE: dict[str, Rule] = {
    **dict.fromkeys(_PRODUCTS, product),
    **dict.fromkeys(WEIGHTED, weighted),
    "matmul": matrix_product,
    "mm": matrix_product,
    "bilinear": lambda function, a, b, weight, bias=None: (
        product(function, a, b, weight) if bias is None else add(function, product(function, a, b, weight), bias)
    ),
    "mul": multiply,
    "div": divide,
    "rdiv": reverse_divide,
    "reciprocal": reciprocal,
    "rsqrt": rsqrt,
    "sqrt": square_root,
    "pow": power,
    "square": square,
    "add": add,
    "sub": add,
    "rsub": reverse_subtract,
    "rmatmul": reverse_matmul,
    "addmm": add_product,
    "addmv": add_product,
    "baddbmm": add_product,
    "addcmul": add_scaled_product,
    "lerp": interpolate_between,
    "var": mean_square,
    "std": deviation,
    "var_mean": mean_and,
    "std_mean": mean_and,
}

__all__ = ["TABLE", "divide", "power", "reciprocal", "weighted"]
