"""Layers whose weight gradient is kept as factors, where these are smaller than the gradient itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.windows import sizes
from .factored_gradient import FactoredGradient, Use
from .products import on_columns, times, times_transposed
from .thresholds import Thresholds


def factored_layer(
    function: Callable[..., Any], x: Tensor, weight: Tensor, factors: FactoredGradient, settings: Sequence[Any],
    thresholds: Thresholds,
) -> Tensor | None:  # fmt: skip
    """`function(x, weight)` for a linear layer or a convolution, whose weight gradient goes to `factors`.

    None where this form of the layer has to be left to autograd. `settings` are what convolutions take after the bias.
    """
    name = getattr(function, "__name__", "")
    result: Tensor
    if name == "linear" and not settings:
        result = _Linear.apply(x, weight, factors, False)
        return result
    if name in ("matmul", "mm") and weight.dim() == 2 and x.dim() >= 2:
        result = _Linear.apply(x, weight, factors, True)
        return result
    dimensions = {"conv1d": 1, "conv2d": 2, "conv3d": 3}.get(name)
    if dimensions is None or x.dim() != dimensions + 2 or any(isinstance(setting, str) for setting in settings):
        return None
    given = list(settings)
    stride, padding, dilation, groups = given + [1, 0, 1, 1][len(given) :]
    how = (_each(stride, dimensions), _each(padding, dimensions), _each(dilation, dimensions), int(groups))
    positions = len(x) * math.prod(sizes(x.shape, weight.shape, how))
    if dimensions == 2 and how[3] == 1 and positions <= thresholds.product_positions:
        return _small_convolution(x, weight, factors, how)
    result = _Convolution.apply(x, weight, factors, how)
    return result


def _small_convolution(x: Tensor, weight: Tensor, factors: FactoredGradient, how: Any) -> Tensor:
    """A convolution with few positions as a product with the patches that its kernel sees, a column for each.

    Weights are then most of what has to be read, and a product reads them once, in the order in which they lie.
    """
    stride, padding, dilation, _ = how
    seen = F.unfold(x, tuple(weight.shape[2:]), tuple(dilation), tuple(padding), tuple(stride))
    columns = seen.flatten(0, 1) if len(x) == 1 else seen.movedim(1, 0).flatten(1)
    sent: Tensor = _OnColumns.apply(columns, weight, factors)
    images = sent.view(len(weight), len(x), *sizes(x.shape, weight.shape, how))
    return images.movedim(1, 0).contiguous()


def _unwritten(tensor: Tensor) -> Callable[[], Tensor | None]:
    """What a layer sends, for later; None once the model has written into it, as `y += x` may do."""
    kept, version = tensor.detach(), tensor._version
    return lambda: kept if kept._version == version else None


def widened(weight: Tensor, factors: FactoredGradient, dtype: torch.dtype) -> Tensor:
    """A half-precision weight in the precision of the flow, with a gradient in that precision too."""
    result: Tensor = _Widened.apply(weight, factors, dtype)
    return result


def _each(value: Any, dimensions: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dimensions if len(values) == 1 else values


class _Widened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, factors: FactoredGradient, dtype: torch.dtype) -> Tensor:
        ctx.factors, ctx.wide = factors, weight.detach().to(dtype)
        result: Tensor = ctx.wide.clone()
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        gradient = gradients[0].detach()
        ctx.factors.add_dense(gradient)  # autograd itself would round it to half precision
        ctx.factors.add_flow((gradient * ctx.wide).sum())
        return None, None, None


class _Linear(torch.autograd.Function):
    """x W^T, or x W for a weight that is stored input first; a weight of more dimensions is read as a matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, factors: FactoredGradient, input_first: bool) -> Tensor:
        weight, lines = weight.flatten(1), x.contiguous()  # few lines are read fastest in the order of the weights
        sent = times(lines, weight) if input_first else times_transposed(lines, weight)
        ctx.save_for_backward(x, weight)
        ctx.factors, ctx.input_first, ctx.sent = factors, input_first, _unwritten(sent)
        return sent

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        y, into = ctx.sent(), None
        if ctx.needs_input_grad[0] or y is None:
            into = times_transposed(gradient, weight) if ctx.input_first else times(gradient, weight)
        ctx.factors.add_flow(_passing(gradient, y, x, into))
        sent = gradient.detach().reshape(-1, gradient.shape[-1])
        seen = x.detach().reshape(-1, x.shape[-1])
        left, right = (seen, sent) if ctx.input_first else (sent, seen)
        ctx.factors.add_product(left.t(), right)
        return into, None, None, None


class _OnColumns(torch.autograd.Function):
    """W x for columns x; a weight of more dimensions is read as a matrix."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor, weight: Tensor, factors: FactoredGradient) -> Tensor:
        weight = weight.flatten(1)
        sent = on_columns(weight, columns)
        ctx.save_for_backward(columns, weight)
        ctx.factors, ctx.sent = factors, _unwritten(sent)
        return sent

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (gradient,) = gradients
        columns, weight = ctx.saved_tensors
        y, into = ctx.sent(), None
        if ctx.needs_input_grad[0] or y is None:
            into = times(gradient.t(), weight).t()
        ctx.factors.add_flow(_passing(gradient, y, columns, into))
        ctx.factors.add_product(gradient.detach(), columns.detach().t())
        return into, None, None


def _passing(gradient: Tensor, y: Tensor | None, x: Tensor, into: Tensor | None) -> Tensor:
    """The flow that passes: the sum of y dR/dy or, where y was written to, of x dR/dx, which is the same."""
    if y is not None:
        return (gradient.detach() * y.detach()).sum()
    assert into is not None
    return (x.detach() * into.detach()).sum()


class _Convolution(torch.autograd.Function):
    """A convolution; patches of x are cut out when the factors are asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, factors: FactoredGradient, how: Any) -> Tensor:
        stride, padding, dilation, groups = how
        wide = weight.to(x.dtype)
        sent = torch.convolution(x, wide, None, stride, padding, dilation, False, [0] * len(stride), groups)
        ctx.save_for_backward(x, weight)
        ctx.factors, ctx.how, ctx.sent = factors, how, _unwritten(sent)
        return sent

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = gradients
        (x, weight), y = ctx.saved_tensors, ctx.sent()
        stride, padding, dilation, groups = ctx.how
        rows, kernel = weight.shape[0], weight.shape[2:]
        positions = gradient.numel() // max(rows, 1)
        thin = groups == 1 and len(kernel) == 2 and ctx.factors.is_thin(positions)
        wanted = [bool(ctx.needs_input_grad[0]) or y is None, not thin, False]
        into, whole, _ = torch.ops.aten.convolution_backward(
            gradient, x, weight.to(x.dtype), None, stride, padding, dilation, False, [0] * len(kernel), groups, wanted
        )
        ctx.factors.add_flow(_passing(gradient, y, x, into))
        if thin:
            seen, sent = x.detach(), gradient.detach().flatten(2).movedim(1, 0).flatten(1)
            ctx.factors.uses.append(Use(sent, seen, (kernel, stride, padding, dilation)))
        else:
            ctx.factors.add_dense(whole)
        return into, None, None, None
