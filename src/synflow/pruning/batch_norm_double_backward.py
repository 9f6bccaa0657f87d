"""Batch norm with an explicit second derivative: that of torch needs seven more images of memory at its peak.

With xh = (x - mean) s, s = 1 / sqrt(var + eps), and P(v) = v - mean(v) - xh mean(v xh), which takes out what the
statistics do not let pass, y = gamma xh + beta has the derivatives dx = gamma s P(g), dgamma = sum(g xh),
dbeta = sum(g). These again, along u, a and b, have the derivatives

    dg = gamma s P(u) + a xh + b        dgamma = s sum(u P(g))
    dx = s P(v) - s xh gamma dgamma / M     with v = a g - gamma s (mean(g xh) u + mean(u xh) g)

which are sums of u, g and xh with one factor per channel (of M numbers).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.memory import give_back
from ..support.torch_modes import SafeMode

# How many numbers are computed at a time, channel by channel: little memory is needed besides the results.
PART = 1 << 18


class EconomicalNorms(SafeMode):
    """A mode in which batch norms with the statistics of the batch need little memory for a second derivative."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = _batch_norm if self.entered and func is F.batch_norm else func
        return function(*args, **(kwargs or {}))


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    channels = input.shape[1] if input.dim() > 1 else 0
    result: Tensor
    if not training or channels == 0 or input.numel() <= channels:  # torch raises its own error for the last
        result = F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    else:
        result = _Norm.apply(input, weight, bias, running_mean, running_var, momentum, eps)
    return result


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
        result, *statistics = torch.native_batch_norm(x, weight, bias, mean, var, True, momentum, eps)
        ctx.save_for_backward(x, weight, *statistics)
        ctx.eps = eps
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, mean, scale = ctx.saved_tensors
        into, slope, shift = _Slope.apply(gradients[0], x, weight, mean, scale, ctx.eps)
        _, with_weight, with_bias, *_ = ctx.needs_input_grad
        return into, slope if with_weight else None, shift if with_bias else None, None, None, None, None


class _Slope(torch.autograd.Function):
    """The first derivative, with respect to the input, gamma and beta."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Any, mean: Tensor, scale: Tensor, eps: float) -> Any:
        ctx.save_for_backward(g, x, weight, mean, scale)
        ctx.set_materialize_grads(False)
        return torch.ops.aten.native_batch_norm_backward(g, x, weight, None, None, mean, scale, True, eps, [True] * 3)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, u: Tensor | None, a: Tensor | None, b: Tensor | None) -> Any:
        g, x, weight, mean, scale = ctx.saved_tensors
        along_g, along_x = torch.empty_like(x), torch.empty_like(x)
        along_weight = None if weight is None else torch.zeros_like(weight)
        width = max(1, PART * x.shape[1] // x.numel())
        for start in range(0, x.shape[1], width):
            part = slice(start, start + width)
            some_u = None if u is None else u[:, part]
            some_weight, some_a, some_b = (None if row is None else row[part] for row in (weight, a, b))
            share = _second(
                some_u, g[:, part], x[:, part], along_g[:, part], along_x[:, part], some_weight, some_a, some_b,
                mean[part], scale[part],
            )  # fmt: skip
            if along_weight is not None:
                along_weight[part] = share
        if x.device.type == "cpu" and x.numel() >= PART:
            give_back()
        return along_g, along_x, along_weight, None, None, None


def _second(
    u: Tensor | None, g: Tensor, x: Tensor, along_g: Tensor, along_x: Tensor, weight: Tensor | None, a: Tensor | None,
    b: Tensor | None, mean: Tensor, scale: Tensor,
) -> Tensor:  # fmt: skip
    """The derivatives of `_Slope` for some channels: written into `along_g` and `along_x`, that by gamma returned."""
    others = [0, *range(2, x.dim())]
    shape = [1, -1, *[1] * (x.dim() - 2)]

    def each(values: Tensor) -> Tensor:
        return values.view(shape)

    zero = torch.zeros_like(scale)
    gain, a = scale if weight is None else weight * scale, zero if a is None else a
    seen = (x - each(mean)).mul_(each(scale))
    mean_g, seen_g = g.mean(others), (g * seen).mean(others)
    mean_u = seen_u = both = zero
    if u is not None:
        mean_u, seen_u, both = u.mean(others), (u * seen).mean(others), (u * g).mean(others)
    # mean(u P(g)), and v = of_u u + of_g g with its own means
    share = both - mean_u * mean_g - seen_u * seen_g
    of_u, of_g = -gain * seen_g, a - gain * seen_u
    mean_v, seen_v = of_u * mean_u + of_g * mean_g, of_u * seen_u + of_g * seen_g
    torch.mul(g, each(scale * of_g), out=along_x)
    along_x.addcmul_(seen, each(-scale * (seen_v + gain * share))).sub_(each(scale * mean_v))
    torch.mul(seen, each(of_g), out=along_g)
    along_g.add_(each((zero if b is None else b) - gain * mean_u))
    if u is not None:
        along_x.addcmul_(u, each(scale * of_u))
        along_g.addcmul_(u, each(gain))
    return scale * share * (x.numel() // x.shape[1])
