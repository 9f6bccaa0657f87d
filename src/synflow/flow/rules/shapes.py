"""What rearranges, selects, sums or passes on: nothing is multiplied, so exponents stay."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...support.nested import leaves, mapped
from ..dispatch import Function, NoRuleError, Rule, active_mode, flow_pass, options
from ..tensor import BLOCKING, Flow, as_flow, either, fixed, flows, scaled, unblocking
from .basic import by_name, homogeneous, identity, rearranged, shift

_IDENTITY = """
relu relu6 leaky_relu prelu rrelu elu selu celu gelu silu mish hardswish hardtanh tanh tanhshrink
softplus softsign logsigmoid log_sigmoid threshold _threshold softshrink hardshrink clamp clamp_min clamp_max
log_softmax detach
atan erf asinh dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout
native_dropout neg abs positive nan_to_num local_response_norm real imag conj angle resolve_conj resolve_neg
log log1p log2 log10 logit erfinv lgamma sin asin sinh tan atanh acosh round floor ceil trunc frac fmod remainder
fake_quantize_per_tensor_affine fake_quantize_per_channel_affine fused_moving_avg_obs_fake_quant renorm
""".split()
_REARRANGED = """
reshape view flatten unflatten squeeze unsqueeze transpose permute movedim t adjoint contiguous clone
expand broadcast_to repeat tile repeat_interleave roll flip fliplr flipud rot90 narrow select index_select
gather take_along_dim __getitem__ chunk split split_with_sizes tensor_split hsplit vsplit dsplit unbind
diagonal diag_embed diag tril triu pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle unfold
fold as_strided masked_select take combinations atleast_1d atleast_2d atleast_3d ravel alias
unsafe_chunk unsafe_split
""".split()
_SUMMED = """
cat stack hstack vstack dstack column_stack row_stack block_diag meshgrid cartesian_prod scatter scatter_add
index_add index_copy index_put masked_scatter cumsum nansum avg_pool1d avg_pool2d avg_pool3d
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d lp_pool1d lp_pool2d upsample upsample_nearest
upsample_bilinear norm vector_norm linalg_vector_norm linalg_norm frobenius_norm trace
""".split()


def reduced(function: Function, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """Sum and mean, in the flow's own precision whatever type is asked for."""
    return homogeneous(function, *args, **kwargs)


def like(function: Function, x: Tensor, other: Tensor) -> Any:
    """view_as, expand_as, reshape_as: only the shape of the second matters."""
    if not isinstance(x, Flow):
        return function(x, other.as_subclass(Tensor))
    return as_flow(function(x, other), x.exponent, x.degrees)


def cast(function: Function, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Casts between floating types are not followed (scores are computed in one precision); moves are."""
    if not isinstance(x, Flow):
        return x.to(device=args[0].device, dtype=args[0].dtype)
    targets = [*args, *kwargs.values()]
    for target in targets:
        if isinstance(target, torch.dtype) and not target.is_floating_point and not target.is_complex:
            raise NoRuleError(
                f"in {active_mode().where()} a flow would become {target}: positions or counts made of values, and a "
                "flow has none. Prune a part of the model that does without, such as a detector's backbone "
                "(masks = synflow.prune(model.backbone, images), synflow.attach(model.backbone, masks))"
            )
    device = next((t for t in targets if isinstance(t, (torch.device, str))), None)
    device = next((t.device for t in targets if isinstance(t, Tensor)), device)
    if device is None or torch.device(device) == x.device:
        return x
    return as_flow(x.to(device), x.exponent, x.degrees)


def interpolate(function: Function, x: Flow, *args: Any, **kwargs: Any) -> Any:
    """Resizing; bicubic has negative coefficients, so bilinear stands in for it."""
    given = by_name("size scale_factor mode align_corners recompute_scale_factor antialias", args, kwargs)
    if given.get("mode") == "bicubic":
        given["mode"] = "bilinear"
    return homogeneous(function, x, **given)


def _filling(value: Any, x: Flow) -> float:
    """A number that fills places of a flow: a shift."""
    return float(shift(torch.tensor(float(value), dtype=x.dtype, device=x.device), x.dtype, x.exponent))


def pad(function: Function, x: Flow, padding: Any, mode: str = "constant", value: Any = None, **_: Any) -> Any:
    """Padding; a padding value other than zero is a shift."""
    how = {"value": _filling(value, x)} if mode == "constant" and value else {"mode": mode}
    return as_flow(F.pad(x, padding, **how), x.exponent, x.degrees)


def masked_fill(function: Function, x: Any, mask: Any, value: Any) -> Any:
    """Filling with a constant: a very negative one blocks, another one is a shift."""
    if isinstance(value, Flow):
        return homogeneous(torch.where, mask, value, x)
    if not isinstance(x, Flow):
        return function(x, mask, value)
    blocks = float(value) <= BLOCKING or not math.isfinite(value)
    return as_flow(x.masked_fill(mask, 0.0 if blocks else _filling(value, x)), x.exponent, x.degrees)


def where(function: Function, condition: Any, first: Any = None, second: Any = None) -> Any:
    """A choice between two: each side as it is, blocking constants as zero."""
    if isinstance(function, type(Tensor.where)) and isinstance(condition, Flow):
        condition, first = first, condition
    sides = [s if isinstance(s, Tensor) else torch.tensor(float(s), dtype=torch.float64) for s in (first, second)]
    device = next(s.device for s in sides if isinstance(s, Flow))
    sides = [s if isinstance(s, Flow) else unblocking(s.to(device)) for s in sides]
    return homogeneous(torch.where, condition, *sides)


def set_item(function: Function, target: Tensor, index: Any, value: Any) -> None:
    """`target[index] = value`, where either may be a flow."""
    if isinstance(value, Flow):
        flow = _writable(target if isinstance(target, Flow) else active_mode().written.becoming_flow(target, value))
        gap = value.exponent - flow.exponent
        if gap > 40 and not flow._is_view():
            # The new part outweighs what is there: bring the rest to its exponent, not the other way round.
            flow.copy_(scaled(flow, -gap))
            flow.exponent, gap = value.exponent, 0
        content: Any = scaled(value, gap).to(flow.dtype)
        flow.degrees = either([flow, value])
    else:
        assert isinstance(target, Flow)
        flow = _writable(target)
        constant = torch.as_tensor(value, dtype=flow.dtype, device=flow.device)
        content = shift(unblocking(constant), flow.dtype, flow.exponent)
    flow[index] = content
    if isinstance(target, Flow) and target.is_weight:
        active_mode().written.rewrite(target, flow)


def _writable(flow: Flow) -> Flow:
    """A flow into which entries can be written: of a weight a copy."""
    if flow.is_weight:
        return as_flow(flow.clone(), flow.exponent, flow.degrees)
    active_mode().written.refuse_part_of_weight(flow)
    return flow


def copy(function: Function, target: Tensor, source: Any, *_: Any, **__: Any) -> Any:
    """`target.copy_(source)`."""
    if isinstance(source, Flow):
        expanded = as_flow(source.expand_as(target).clone(), source.exponent, source.degrees)
        return active_mode().written.overwrite(target, expanded)
    assert isinstance(target, Flow)
    if target.is_weight:
        raise active_mode().written.no_way_on()
    active_mode().written.refuse_part_of_weight(target)
    target.copy_(shift(source, target.dtype, target.exponent))
    return target


def largest(support: Rule) -> Rule:
    """A maximum as it is; in boolean arithmetic, where flow passes from anywhere, by a rule that gives its support."""

    def rule(function: Function, *args: Any, **kwargs: Any) -> Any:
        function = _LARGEST.get(function.__name__, function)
        if options().saturate:
            return support(function, *args, **kwargs)
        flow_pass().note_bend()
        return homogeneous(function, *args, **kwargs)

    return rule


def window(
    function: Function, x: Flow, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    """Max pooling in boolean arithmetic: the sum over the window."""
    dims = int(function.__name__.replace("_with_indices", "")[-2])
    settings = [
        tuple(value) if isinstance(value, (tuple, list)) else (int(value),) * dims
        for value in (kernel_size, stride or kernel_size, padding, dilation)
    ]
    shape = getattr(F, f"max_pool{dims}d")(torch.zeros_like(fixed(x)), *settings, ceil_mode).shape
    counted = x.as_subclass(Tensor)
    for axis, k, s, p, d in zip(range(-dims, 0), *settings, strict=True):
        width = d * (k - 1) + 1
        end = max(0, (shape[axis] - 1) * s + width - x.shape[axis] - p)  # as far as the last window goes
        counted = F.pad(counted, [*[0, 0] * (-1 - axis), p, end]).unfold(axis, width, s)[..., ::d].sum(-1)
    return homogeneous(torch.clone, as_flow(counted, x.exponent, x.degrees))


def average(function: Function, x: Flow, output_size: Any, return_indices: bool = False) -> Any:
    """Adaptive max pooling in boolean arithmetic."""
    return homogeneous(getattr(F, function.__name__.replace("max", "avg").replace("_with_indices", "")), x, output_size)


def total(function: Function, x: Flow, *args: Any, **kwargs: Any) -> Any:
    """max, amax, maximum in boolean arithmetic: a sum."""
    if (args and isinstance(args[0], Tensor)) or flows(kwargs):
        return homogeneous(torch.add, x, *args, **kwargs)
    found = homogeneous(torch.sum, x, *args, **kwargs)
    if function.__name__ == "max" and (args or "dim" in kwargs):
        return torch.return_types.max((found, torch.zeros_like(found, dtype=torch.long)))
    return found


# A least entry counts as the largest: a sign does not count.
_LARGEST: dict[str, Any] = {"min": torch.max, "amin": torch.amax, "minimum": torch.maximum, "fmin": torch.maximum}


def reduce_into(function: Function, x: Any, *args: Any, **kwargs: Any) -> Any:
    """scatter_reduce and the like: a least entry as the largest, in boolean arithmetic a sum."""
    names = {"amin": "amax", "min": "max"}

    def kind(leaf: Any) -> Any:
        if isinstance(leaf, str) and options().saturate and leaf != "prod":
            return "mean" if "index" in function.__name__ else "sum"
        return names.get(leaf, leaf) if isinstance(leaf, str) else leaf

    args, kwargs = mapped(kind, (args, kwargs))
    if "prod" in leaves((args, kwargs)):
        raise active_mode().no_rule(function.__name__, function)
    return homogeneous(function, x, *args, **kwargs)


TABLE: dict[str, Rule] = {
    **dict.fromkeys(_IDENTITY, identity),
    **dict.fromkeys(_REARRANGED, rearranged),
    **dict.fromkeys(_SUMMED, homogeneous),
    **dict.fromkeys(("sum", "mean", "nanmean"), reduced),
    **dict.fromkeys(("view_as", "expand_as", "reshape_as"), like),
    **dict.fromkeys(("to", "type", "float", "double", "half", "bfloat16", "type_as", "cpu", "cuda"), cast),
    **dict.fromkeys(("max", "amax", "maximum", "fmax", "min", "amin", "minimum", "fmin"), largest(total)),
    **{f"max_pool{n}d{end}": largest(window) for n in (1, 2, 3) for end in ("", "_with_indices")},
    **{f"adaptive_max_pool{n}d": largest(average) for n in (1, 2, 3)},
    **dict.fromkeys(("scatter_reduce", "index_reduce", "segment_reduce"), reduce_into),
    "interpolate": interpolate,
    "pad": pad,
    "constant_pad_nd": lambda function, x, padding, value=0: pad(function, x, padding, value=value),
    "masked_fill": masked_fill,
    "where": where,
    "__setitem__": set_item,
    "copy_": copy,
}
