"""Normalisation layers and bounded gates: a scale that no weight can change, a gain and a shift.

What divides is a scale, not a path: it is applied without a gradient. Without it the flow of gated and residual
networks would square from block to block, and whole branches would vanish beside others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dispatch import Function, Rule, composite, flow_pass, options, stand_in
from ..tensor import Flow, as_flow, fixed
from .arithmetic import reciprocal
from .basic import by_name, homogeneous, note_zero_gain, settled


def batch_norm(function: Function, x: Flow, *args: Any, **kwargs: Any) -> Any:
    """The affine map of evaluation made positive: gain |gamma| / sigma, shift |beta - gamma * mu / sigma|.

    With norms inside the flow: gain |gamma| / (mean flow of the tensor), shift |beta|, as in training.
    """
    given = by_name("running_mean running_var weight bias training momentum eps", args, kwargs)
    mean, variance, weight, bias = (given.get(name) for name in ("running_mean", "running_var", "weight", "bias"))
    asked, eps = options(), given.get("eps", 1e-5)
    if asked.norms and asked.divide and not asked.saturate and not isinstance(weight, Flow):
        return _by_mean_flow(x, variance, weight, bias)
    if mean is None or variance is None or given.get("training"):
        return _by_own_scale(x, [0, *range(2, x.dim())], weight, bias)
    if isinstance(weight, Flow) or isinstance(bias, Flow):
        return _by_parts(x, mean, variance, weight, bias, eps)
    gain, constant, is_zero = _remembered(mean, variance, weight, bias, eps, x)
    if is_zero:
        note_zero_gain()
    scaled = settled(x.as_subclass(Tensor) * gain, x.exponent, x.degrees)
    return scaled if constant is None else homogeneous(torch.add, scaled, constant)


@composite
def _by_mean_flow(x: Any, variance: Any, weight: Any, bias: Any) -> Any:
    """One scale for the whole tensor, since one per channel would keep every unit alive; the pass notes the scale."""
    mean = fixed(x).mean()
    flow_pass().mean_flows[id(variance)] = mean, x.exponent
    return _affine(x * reciprocal(torch.reciprocal, as_flow(mean.clone(), x.exponent)), weight, bias)


@composite
def _by_parts(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Batch norm with a pruned gain or shift."""
    gamma, sigma = _gain(weight), (variance.to(x.dtype) + eps).sqrt()
    gamma = torch.ones_like(sigma) if gamma is None else gamma
    constant = -(fixed(gamma) if isinstance(gamma, Flow) else gamma) * mean / sigma
    return _affine(x, gamma / sigma, constant if bias is None else constant + bias)


def _remembered(
    mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, x: Tensor
) -> tuple[Tensor, Tensor | None, bool]:
    """Gain, shift (None if zero), and whether a gain of zero counts as one; made once, as no step changes them."""
    given = (mean, variance, weight, bias)
    key = (*map(id, given), eps, x.dtype, x.dim())
    versions = [0 if tensor is None else tensor._version for tensor in given]
    known = flow_pass().constants
    if key not in known or known[key][1] != versions:
        dtype, shape = x.dtype, [-1] + [1] * (x.dim() - 2)
        sigma = (variance.detach().to(dtype) + eps).sqrt()
        is_zero = weight is not None and weight.numel() > 0 and not bool(weight.any())
        gamma = torch.ones_like(sigma) if weight is None or is_zero else weight.detach().to(dtype)
        gain, constant = gamma / sigma, -gamma * mean.detach().to(dtype) / sigma
        constant = constant if bias is None else constant + bias.detach().to(dtype)
        shift = constant.reshape(shape) if bool(constant.any()) else None
        # The tensors are held so that their ids stay theirs.
        known[key] = (given, versions, (gain.abs().reshape(shape), shift, is_zero))
    found: tuple[Tensor, Tensor | None, bool] = known[key][2]
    return found


@composite
def _by_own_scale(x: Any, dims: list[int], weight: Any, bias: Any) -> Any:
    """A norm without statistics: unit scale over some dimensions, gain |gamma| and shift |beta| of each channel."""
    return _affine(unit_scale(x, dims), weight, bias)


def trailing_norm(x: Flow, normalized_shape: Any, weight: Any = None, bias: Any = None, *_: Any, **__: Any) -> Any:
    """Layer and RMS norm: unit scale over the trailing dimensions."""
    trailing = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
    return _affine(unit_scale(x, list(range(-trailing, 0))), weight, bias, by_channel=False)


def group_norm(x: Flow, num_groups: int, weight: Any = None, bias: Any = None, *_: Any, **__: Any) -> Any:
    """Group norm: unit scale of each group, gain |gamma| and shift |beta| of each channel."""
    grouped = unit_scale(x.reshape(x.size(0), num_groups, -1), [2]).reshape(x.shape)
    return _affine(grouped, weight, bias)


def instance_norm(function: Function, x: Flow, *args: Any, **kwargs: Any) -> Any:
    """Instance norm: as batch norm when it uses running statistics, else unit scale of each channel."""
    given = by_name("running_mean running_var weight bias use_input_stats momentum eps", args, kwargs)
    if given.pop("use_input_stats", True):
        return _by_own_scale(x, list(range(2, x.dim())), given.get("weight"), given.get("bias"))
    return batch_norm(function, x, **given)


def normalize(x: Flow, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, **_: Any) -> Any:
    """Division by a norm: the norm is a scale, not a path."""
    return x * reciprocal(torch.reciprocal, torch.linalg.vector_norm(x, p, dim, keepdim=True))


def weight_norm(direction: Tensor, length: Tensor, dim: int = 0) -> Any:
    """Weight normalisation: the direction over its length without a gradient, times the gain."""
    axes = [axis for axis in range(direction.dim()) if axis != dim] if dim >= 0 else list(range(direction.dim()))
    if not isinstance(direction, Flow):
        return length * (direction / direction.norm(dim=axes, keepdim=True))
    return length * normalize(direction, 2.0, axes)


def softmax(x: Flow, dim: int | None = None, *_: Any, **__: Any) -> Any:
    """Rows divided by their sum without a gradient: they still sum to one, and flow still passes."""
    return x / x.sum(-1 if dim is None else dim, keepdim=True) if options().divide else x


def unit_scale(x: Any, dims: list[int]) -> Any:
    """Divide by the root mean square over some dimensions, without a gradient."""
    if not isinstance(x, Flow) or not options().divide or not dims:
        return x
    data = fixed(x)
    # Relative to the largest entry, so that squares of small rows do not underflow.
    top = data.amax(dims, keepdim=True).clamp_min(torch.finfo(data.dtype).tiny)
    rms = top * (data / top).square().mean(dims, keepdim=True).sqrt()
    return x * reciprocal(torch.reciprocal, as_flow(rms, x.exponent))


def gate(x: Any, *_: Any, **__: Any) -> Any:
    """A bounded gate (sigmoid): flow in proportion to its input, at a scale of one."""
    if not isinstance(x, Flow) or not options().divide:
        return x
    return x * reciprocal(torch.reciprocal, as_flow(fixed(x).mean(), x.exponent))


def gated_linear(x: Any, dim: int = -1) -> Any:
    """GLU: one half, gated by the other."""
    first, second = x.chunk(2, dim)
    return first * torch.sigmoid(second)


def _gain(weight: Tensor | None) -> Tensor | None:
    if weight is None or isinstance(weight, Flow):
        return weight
    if weight.numel() and not bool(weight.any()):
        note_zero_gain()
        return torch.ones_like(weight)
    return weight.detach()


def _affine(x: Tensor, gain: Tensor | None, shift: Tensor | None, by_channel: bool = True) -> Any:
    """Gain, then shift, along the second dimension (or along the trailing dimensions)."""
    shape = [-1] + [1] * (x.dim() - 2)
    gain, shift = (v.reshape(shape) if by_channel and v is not None else v for v in (_gain(gain), shift))
    x = x if gain is None else x * gain
    return x if shift is None or not (isinstance(shift, Flow) or bool(shift.any())) else x + shift


_STAND_INS: dict[str, Rule] = {
    "layer_norm rms_norm": trailing_norm,
    "group_norm": group_norm,
    "normalize": normalize,
    "_weight_norm": weight_norm,
    "sigmoid hardsigmoid": gate,
    "glu": gated_linear,
    "softmax _softmax": softmax,
}

TABLE: dict[str, Rule] = {
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    **{name: stand_in(rule) for names, rule in _STAND_INS.items() for name in names.split()},
}
