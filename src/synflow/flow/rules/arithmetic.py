"""Products, quotients, powers and sums written out by hand in a model."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..dispatch import Function, NoRuleError, Rule, active_mode, flow_pass, options, stand_in
from ..operation_names import WEIGHTED
from ..tensor import Flow, anything, as_flow, both, fixed
from .basic import add, by_name, homogeneous, positive, product, settled, shift, times
from .constants import LARGE, positive_linear


def weighted(function: Function, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Linear and convolution: one call, with the bias brought to the exponent of the product."""
    if flow_pass().watched is not None:
        return _tapped(function, x, weight, bias, *args, **kwargs)
    taken = None if kwargs else _taken_over(function, x, weight, args)
    if taken is None:
        return _weighted(function, *active_mode().readable((x, weight), {})[0], bias, *args, **kwargs)
    if bias is None or not (isinstance(bias, Flow) or anything(bias)):
        return taken
    return _with_bias(function, taken, bias)


def _taken_over(function: Function, x: Any, weight: Any, settings: tuple[Any, ...] = ()) -> Flow | None:
    """The layer without its bias, by the hooks of the pass, if they want it."""
    if not isinstance(x, Flow) or not isinstance(weight, Flow):
        return None
    data = flow_pass().hooks.layer(function, x, weight, settings)
    return None if data is None else settled(data, x.exponent + weight.exponent, both([x, weight]))


def matrix_product(function: Function, first: Any, second: Any) -> Any:
    """A matrix product; one with a weight (stored input first) is a layer."""
    taken = _taken_over(function, first, second)
    return product(function, *active_mode().readable((first, second), {})[0]) if taken is None else taken


def _tapped(function: Function, x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The same, and the flow y dR/dy of each unit is noted; a copy goes on, so that nothing writes into y later."""
    sent = _weighted(function, x, weight, *args, **kwargs)
    name = (flow_pass().watched or {}).get(id(weight))
    if name is None:
        return sent
    flows, data = flow_pass().unit_flows, fixed(sent)
    others = [axis for axis in range(sent.dim()) if axis != _unit_dimension(function, sent)]

    def note(gradient: Tensor) -> None:
        flows[name] = flows.get(name, 0) + (data.double() * gradient.as_subclass(Tensor).double()).sum(others)

    if sent.requires_grad:
        sent.register_hook(note)
    return as_flow(sent.as_subclass(Tensor).clone(), sent.exponent, sent.degrees)


def _weighted(function: Function, x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
    factors = [f for f in (x, weight) if isinstance(f, Flow)]
    if not isinstance(x, Flow) and anything(x):
        flow_pass().loose = True  # learned queries and the like: a flow that no input feeds
    large = function is torch.nn.functional.linear and not isinstance(weight, Flow) and weight.numel() >= LARGE
    if large and bias is None and isinstance(x, Flow):
        return settled(positive_linear(x.as_subclass(Tensor), weight.to(x.dtype)), x.exponent, x.degrees)
    exponent = sum(f.exponent for f in factors)
    # Below this exponent the bias would overflow, so that it is added apart.
    if bias is None or isinstance(bias, Flow) or exponent < -60:
        result = product(function, x, weight, None, *args, **kwargs)
        return result if bias is None else _with_bias(function, result, bias)
    dtype, degrees = factors[0].dtype, both(factors)
    data = function(positive(x, dtype), positive(weight, dtype), shift(bias, dtype, exponent), *args, **kwargs)
    if degrees is not None and options().shifts:
        degrees = degrees[0] * 0, degrees[1]  # a shift is a term that meets no weight
    return settled(data, exponent, degrees)


def _with_bias(function: Function, result: Flow, bias: Tensor) -> Any:
    shape = [1] * result.dim()
    shape[_unit_dimension(function, result)] = -1
    viewed = bias.reshape(shape)
    if isinstance(bias, Flow):
        viewed = as_flow(viewed, bias.exponent, bias.degrees)
    return homogeneous(torch.add, result, viewed)


def _unit_dimension(function: Function, result: Tensor) -> int:
    """Where the units of a layer's output are: the channels of a convolution, the last dimension otherwise."""
    name = getattr(function, "__name__", "")
    return result.dim() - 1 - (int(name[-2]) if "conv" in name else 0)


def divide(function: Function, first: Any, second: Any, **_: Any) -> Any:
    """A divisor that is a flow is a scale, not a path: it is applied without a gradient."""
    if isinstance(second, Flow):
        return times(first, reciprocal(torch.reciprocal, second))
    return product(torch.div, first, torch.as_tensor(second, dtype=first.dtype, device=first.device))


def reciprocal(function: Function, x: Flow, power: float = 1.0) -> Flow:
    """``x ** -power`` without a gradient; where there is no flow the quotient is zero, as its numerator is."""
    data, whole = fixed(x), -x.exponent * power
    if not options().divide or options().saturate:
        return as_flow(torch.ones_like(data))
    flow_pass().note_bend()
    exponent = math.floor(whole)
    inverse = torch.where(data > 0, data.clamp_min(torch.finfo(data.dtype).tiny) ** -power, torch.zeros_like(data))
    return as_flow(inverse * 2.0 ** (whole - exponent), exponent)


def power(function: Function, x: Any, exponent: Any) -> Any:
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
    if exponent < 1:
        return product(torch.mul, x, reciprocal(function, x, 1.0 - exponent))
    whole = x.exponent * exponent
    integer = math.floor(whole)
    degrees = None if x.degrees is None else tuple((d * math.ceil(exponent)) for d in x.degrees)
    return settled(x.as_subclass(Tensor) ** exponent * 2.0 ** (whole - integer), integer, degrees)


def add_product(start: Any = None, *factors: Any, beta: Any = 1, alpha: Any = 1, **named: Any) -> Any:
    """addmm, baddbmm, addmv: a sum and a matrix product (torch names the factors differently in each)."""
    start = named.pop("input", start)
    result = torch.matmul(*factors, *named.values())
    if alpha != 1:
        result = result * abs(alpha)
    return result if beta == 0 else start * abs(beta) + result


def spread(function: Function, x: Flow, *args: Any, **kwargs: Any) -> Any:
    """var, std, var_mean, std_mean, as they appear in hand-written norms: the mean of the squares, or its root."""
    given = by_name("dim unbiased keepdim", () if args and isinstance(args[0], bool) else args, kwargs)
    over = {} if given.get("dim") is None else {"dim": given["dim"], "keepdim": bool(given.get("keepdim", False))}
    found = homogeneous(torch.mean, power(function, x, 2), **over)
    if function.__name__.startswith("std"):
        found = power(function, found, 0.5)
    return (found, homogeneous(torch.mean, x, **over)) if function.__name__.endswith("_mean") else found


_PRODUCTS = "bmm mv dot vdot inner outer ger einsum tensordot kron chain_matmul multi_dot".split()

TABLE: dict[str, Rule] = {
    **dict.fromkeys(_PRODUCTS, product),
    **dict.fromkeys(WEIGHTED, weighted),
    **dict.fromkeys(("matmul", "mm"), matrix_product),
    "rmatmul": lambda _, second, first: product(torch.matmul, first, second),
    "bilinear": lambda function, a, b, weight, bias=None: (
        product(function, a, b, weight) if bias is None else add(function, product(function, a, b, weight), bias)
    ),
    "mul": lambda _, first, second, **__: times(first, second),
    "div": divide,
    "rdiv": lambda function, divisor, dividend: divide(function, dividend, divisor),
    "reciprocal": reciprocal,
    "rsqrt": lambda function, x: reciprocal(function, x, 0.5),
    "pow": power,
    "sqrt": lambda function, x: power(function, x, 0.5),
    "square": lambda function, x: power(function, x, 2),
    **dict.fromkeys(("add", "sub"), add),
    "rsub": lambda function, first, second, alpha=1: add(function, second, first, alpha=alpha),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), stand_in(add_product)),
    "addcmul": stand_in(lambda start, first, second, value=1: start + first * second * abs(value)),
    "lerp": stand_in(
        lambda start, end, weight: start * (weight if isinstance(weight, Flow) else 1 - weight) + end * weight
    ),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), spread),
}
