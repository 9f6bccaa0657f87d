"""A network prepared for inference: batch norms folded into the layers before them, memory layout for convolutions.

A recorded run shows which norm follows which layer, so it does not matter how the model is written.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, TypeVar, overload

import torch
from torch import nn

from ..compaction.record.aten_names import BATCH_NORMS
from ..compaction.verify import DifferenceError, compare, double, inputs_like
from ..errors import SynflowError, check_flag, warn
from ..masks.attach import bake
from ..network.private_copy import whole_copy
from ..support import memory
from ..support.torch_modes import plain_tensors
from .freezing import choose_forms, pack, replace, reshape
from .freezing import freeze as freeze_graph
from .recorded_run import RecordedRun, record

Model = TypeVar("Model", bound=nn.Module)

# Exactly these classes: a subclass may do more.
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@overload
def for_inference(
    model: Model, example: Any, *, channels_last: bool = True, freeze: Literal[False] = False
) -> Model: ...


@overload
def for_inference(model: nn.Module, example: Any, *, channels_last: bool = True, freeze: bool) -> nn.Module: ...


@plain_tensors
def for_inference(model: nn.Module, example: Any, *, channels_last: bool = True, freeze: bool = False) -> nn.Module:
    """A copy for inference only, with the same outputs up to rounding: masks baked in, batch norms folded, eval mode.

    A batch norm is folded if its only input is the output of one convolution or linear layer that nothing else reads.
    `channels_last` stores images with channels innermost, which is usually faster for convolutions on CPUs. `freeze`
    makes one graph that runs without Python (`torch.jit`), for inputs of the example's shape (batch size included) that
    take the example's path through the model's code; convolutions get the form that suits the sizes of their images.
    `torch.jit` keeps 0.4 to 0.9 MB of each graph while the process lives, so freeze once, not in a loop. A model that
    can't be traced is returned unfrozen, with a warning. Outputs on random inputs must equal the model's to 1e-10 in
    double precision, or nothing is returned. The model itself is not changed.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    >>> for_inference(model, torch.ones(1, 3, 8, 8))
    Sequential(
      (0): Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    check_flag("channels_last", channels_last)
    check_flag("freeze", freeze)
    ready = whole_copy(model)
    bake(ready)
    vars(ready).pop("compaction", None)  # folded weights can't be expanded or saved as a compact network's
    ready.eval().requires_grad_(False)
    seen = record(ready, example)
    pairs = _pairs(ready, seen)
    reference, folded = (double(copy.deepcopy(ready), seen.dtype) for _ in range(2))
    _fold(folded, pairs)
    _check(reference, folded, example, seen.dtype)
    _fold(ready, pairs)
    if channels_last and any(isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) for module in ready.modules()):
        memory.channels_last(ready)
    if freeze:
        try:
            return _frozen(ready, reference, folded, example, channels_last)
        except Exception as cause:
            reason = str(cause).strip().splitlines()[:1] or [type(cause).__name__]
            warn(f"{type(model).__name__} is made ready for inference, but not frozen: {reason[0]}")
    return ready


def _frozen(ready: nn.Module, reference: nn.Module, folded: nn.Module, example: Any, channels_last: bool) -> nn.Module:
    """The frozen form of a folded model; in float64, `reference` is the model before and `folded` after folding."""
    seen = record(ready, example)
    forms = choose_forms(ready, seen)
    reshape(folded, forms, channels_last)
    _check(reference, folded, example, seen.dtype)
    shaped = copy.deepcopy(ready)
    reshape(shaped, forms, channels_last)
    if channels_last:
        memory.channels_last(shaped)
    pack(shaped, forms, channels_last)
    return freeze_graph(shaped, ready, example)


def _pairs(model: nn.Module, seen: RecordedRun) -> list[tuple[str, str]]:
    """Pairs of paths: a layer, and the norm that can be folded into it."""
    found: list[tuple[str, str]] = []
    for norm in seen.tape.steps:
        if norm.name not in BATCH_NORMS or norm.args.get("training") or norm.ref("running_mean") is None:
            continue
        layer = next((step for step in reversed(seen.tape.steps) if norm.inputs[0] in step.outputs), None)
        if layer is None or seen.reads[norm.inputs[0]] > 1 or type(model.get_submodule(layer.module)) not in _LAYERS:
            continue
        both_alone = seen.alone(model, layer.module) and seen.alone(model, norm.module)
        if both_alone and _after(model.get_submodule(norm.module)) is not None:
            found.append((layer.module, norm.module))
    return found


def _after(norm: Any) -> nn.Module | None:
    """The module that replaces a folded norm; None if the norm is of an unknown kind."""
    if type(norm) in _NORMS:
        return nn.Identity()
    if type(norm).__name__ == "BatchNormAct2d":  # timm's, which has an activation inside
        return nn.Sequential(norm.drop, norm.act)
    return None


def _fold(model: nn.Module, pairs: list[tuple[str, str]]) -> None:
    for path, norm_path in pairs:
        layer: Any = model.get_submodule(path)
        norm: Any = model.get_submodule(norm_path)
        dtype, weight = layer.weight.dtype, layer.weight.double()
        gain = (norm.running_var.double() + norm.eps).rsqrt() * (1 if norm.weight is None else norm.weight.double())
        shift = gain * ((0 if layer.bias is None else layer.bias.double()) - norm.running_mean.double())
        if isinstance(layer, _TRANSPOSED):  # outputs are counted per group, in the second dimension
            per_group = gain.reshape(layer.groups, 1, -1, *[1] * (weight.dim() - 2))
            scaled = (weight.unflatten(0, (layer.groups, -1)) * per_group).flatten(0, 1)
        else:
            scaled = weight * gain.reshape(-1, *[1] * (weight.dim() - 1))
        layer.weight = nn.Parameter(scaled.to(dtype), requires_grad=False)
        layer.bias = nn.Parameter((shift + (0 if norm.bias is None else norm.bias)).to(dtype), requires_grad=False)
        after = _after(norm)
        assert after is not None
        replace(model, norm_path, after)


def _check(reference: nn.Module, folded: nn.Module, example: Any, dtype: torch.dtype) -> None:
    for seed in (None, 1):
        inputs = inputs_like(example, seed, dtype)
        try:
            compare(reference, folded, {}, {}, inputs, training=False)
        except DifferenceError as difference:
            raise SynflowError(
                f"made ready for inference the model is not the same: {difference}; nothing is returned. "
                "Norms after these layers may be looked at elsewhere in the model: leave it as it is"
            ) from None
