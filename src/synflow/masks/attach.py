"""Masks on a network: put them on, train under them, take them off.

`attach` sets the pruned weights to zero in place and masks them wherever they are read (see `masked_modules`); masks
are boolean buffers beside the weights, so they follow `.to(device)` and are part of the `state_dict`. Saving zeroes
the pruned weights again, so a checkpoint of an attached model holds the pruned network under the dense names.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from .masked_modules import MASK_SUFFIX, hold, mask_of, masked_names, release

__all__ = ["attach", "attached", "bake", "density", "load_state", "rewind", "shuffle"]

Model = TypeVar("Model", bound=nn.Module)


class Slot(NamedTuple):
    """A place that holds a parameter: the parameter's name there, the module, and the attribute."""

    name: str
    module: nn.Module
    attribute: str


def attach(model: Model, masks: Mapping[str, Tensor]) -> Model:
    """Prune the model in place and keep it so: `weight = mask * weight` wherever a weight is read.

    Optimizers made before or after keep working, since every Parameter stays the same object under the same name.
    Attaching again may prune more weights but brings none back. An error leaves the model as it was.

    >>> layer = attach(nn.Linear(2, 2, bias=False), {"weight": torch.tensor([[True, False], [False, True]])})
    >>> layer
    Linear(in_features=2, out_features=2, bias=False, density=0.5)
    >>> layer.weight[0, 1].item()
    0.0
    """
    slots = _slots(model)
    check_masks(masks, model)
    for name, current in attached(model).items():
        revived = int((masks[name].to(current.device) & ~current).sum()) if name in masks else 0
        if revived:
            raise SynflowError(
                f"{name}: the new mask keeps {revived} weights that the attached mask has pruned, and their values are "
                "gone; attach `mask & synflow.attached(model)[name]`, or start over: synflow.bake(model), "
                "synflow.rewind(model, state), synflow.attach(model, masks)"
            )
    _hold(masks, slots)
    return model


def attached(model: nn.Module) -> dict[str, Tensor]:
    """The masks that a model holds, by the names of its parameters; empty for a plain model."""
    return {
        name: mask_of(first.module, first.attribute).clone()
        for name, (first, *_) in _slots(model).items()
        if first.attribute in masked_names(first.module)
    }


def bake(model: nn.Module) -> dict[str, Tensor]:
    """Take the masks off and leave a plain model: zeros in place, its own classes, parameters and state_dict keys.

    Returns the masks, so that `attach(model, bake(model))` changes nothing.
    """
    masks = attached(model)
    for module in list(model.modules()):
        if masked_names(module):
            release(module)
    return masks


def rewind(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Put the weights and buffers, not the masks, back to an earlier state_dict, to the bit.

    The state may be that of the dense or of the attached model. Its names, shapes and dtypes must be the model's, or
    nothing is changed.
    """
    if _masks_in(state) and not attached(model):
        raise SynflowError(
            "this state was saved with masks, but the model has none, so pruned weights would grow back in training; "
            "use synflow.load_state(model, state), which attaches them, or attach the masks before rewinding"
        )
    _load(model, state)


def load_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state_dict, saved with masks or without, into a model with masks or without.

    Masks in the state are attached, in place of those that the model holds for the same weights; other masks of the
    model stay. Names, shapes and dtypes must be the model's, or nothing is changed.
    """
    slots = _slots(model)
    first_names = {slot.name: name for name, places in slots.items() for slot in places}
    masks: dict[str, Tensor] = {}
    for name, mask in _masks_in(state).items():
        masks.setdefault(first_names.get(name, name), mask)
    check_masks(masks, model)
    for name, mask in _masks_in(state).items():
        first = first_names[name]
        if not (mask is masks[first] or (isinstance(mask, Tensor) and torch.equal(mask, masks[first]))):
            raise SynflowError(f"{name} is tied to {first}, but the state has another mask for it; nothing was loaded")
    _check_state(model, state)
    _hold(masks, slots)
    _load(model, state)


def density(masks: Mapping[str, Tensor]) -> float:
    """The share of the masked weights that is kept; 1 without masks.

    >>> density({"a": torch.tensor([True, False]), "b": torch.tensor([False, False])})
    0.25
    """
    total = sum(mask.numel() for mask in masks.values())
    return sum(int(mask.sum()) for mask in masks.values()) / total if total else 1.0


def shuffle(masks: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Permute each mask within itself: the same densities layer by layer, but none of the choice of weights.

    Depends on the seed and the names alone, not on the order of the masks, the device or the global random state.

    >>> density(shuffle({"a": torch.tensor([True, False, False, False])}, seed=1))
    0.25
    """
    shuffled = {name: _shuffled(mask, f"{seed}/{name}") for name, mask in masks.items()}
    if not isinstance(masks, dict) or type(masks) is dict:
        return shuffled
    result: dict[str, Tensor] = copy.copy(masks)  # a subclass keeps what it says about itself
    result.update(shuffled)
    if isinstance(getattr(masks, "about", None), dict):
        result.about = {**masks.about, "shuffled": seed}  # type: ignore[attr-defined]
    return result


def _shuffled(mask: Tensor, key: str) -> Tensor:
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big"))
    order = torch.randperm(mask.numel(), generator=generator).to(mask.device)
    return mask.flatten()[order].view(mask.shape)


_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel)
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")  # torch.compile and checkpoint_wrapper put these into names


def _unwrap(model: nn.Module) -> nn.Module:
    while isinstance(model, _WRAPPERS):
        model = model.module
    return model


def _dense_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPED)


def _slots(model: nn.Module) -> dict[str, list[Slot]]:
    """Where each parameter is held, a tied one in several places under its first name."""
    slots: dict[str, list[Slot]] = {}
    first_names: dict[Tensor, str] = {}
    for prefix, module in _unwrap(model).named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                name = _dense_name(f"{prefix}.{attribute}" if prefix else attribute)
                slots.setdefault(first_names.setdefault(parameter, name), []).append(Slot(name, module, attribute))
    return slots


def named_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, under its first name in the dense model, whatever the model is wrapped in."""
    weights = {name: first.module._parameters[first.attribute] for name, (first, *_) in _slots(model).items()}
    return {name: weight for name, weight in weights.items() if weight is not None}


def fingerprint(model: nn.Module) -> str:
    """A hash of the names and shapes of all parameters, in any order: equal for equal architectures.

    >>> fingerprint(nn.Linear(2, 3)) == fingerprint(nn.Linear(2, 3)) != fingerprint(nn.Linear(3, 2))
    True
    """
    return fingerprint_of({name: list(weight.shape) for name, weight in named_weights(model).items()})


def fingerprint_of(shapes: Mapping[str, list[int]]) -> str:
    return hashlib.sha256(json.dumps(sorted(shapes.items())).encode()).hexdigest()


def _hold(masks: Mapping[str, Tensor], slots: Mapping[str, list[Slot]]) -> None:
    for name, mask in masks.items():
        for slot in slots[name]:
            hold(slot.module, slot.attribute, mask)


def _some(names: Iterable[str], most: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_masks(masks: Mapping[str, Tensor], model: nn.Module) -> None:
    """Raise an error unless each mask is a boolean tensor of the shape of a weight of the model."""
    slots = _slots(model)
    if not isinstance(masks, Mapping):
        raise SynflowError(f"masks must be a dict of boolean tensors by parameter name, got {type(masks).__name__}")
    unknown = [str(name) for name in masks if name not in slots]
    if unknown:
        tied = {slot.name for places in slots.values() for slot in places[1:]}
        why = "these are further names of tied weights; use the first one" if tied.issuperset(unknown) else (
            "take the names from model.named_parameters(), without a wrapper's prefix"
        )  # fmt: skip
        raise SynflowError(f"the model has no parameter {_some(unknown)}; it has {_some(slots)}; {why}")
    weights = named_weights(model)
    for name, mask in masks.items():
        weight = weights[name]
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise SynflowError(
                f"{name}: a mask is a boolean tensor, True where a weight is kept, got {got}; try mask != 0"
            )
        if isinstance(weight, nn.parameter.UninitializedParameter):
            raise SynflowError(f"{name}: the weight has no shape yet; run a batch through the model first")
        if mask.shape != weight.shape:
            raise SynflowError(
                f"{name}: the mask has shape {tuple(mask.shape)}, the weight {tuple(weight.shape)}; "
                "were the masks made for another architecture?"
            )
        if weight.is_meta or mask.is_meta:
            raise SynflowError(f"{name}: no values on the meta device; materialize the model first, then attach")
        if any(isinstance(slot.module, torch.jit.ScriptModule) for slot in slots[name]):
            raise SynflowError(f"{name} is in a TorchScript module, which cannot be masked; attach, bake, then script")


def _masks_in(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {_dense_name(key).removesuffix(MASK_SUFFIX): state[key] for key in state if key.endswith(MASK_SUFFIX)}


def _kind(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_state(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state under the model's own keys, without masks; an error if anything is missing, left over or different."""
    own = {key: value for key, value in _unwrap(model).state_dict().items() if not key.endswith(MASK_SUFFIX)}
    keys = {_dense_name(key): key for key in own}
    given = {_dense_name(key): value for key, value in state.items() if not key.endswith(MASK_SUFFIX)}
    missing, unexpected = [key for key in keys if key not in given], [key for key in given if key not in keys]
    if missing or unexpected:
        parts = [f"lacks {_some(missing)}"] * bool(missing) + [f"has an unknown {_some(unexpected)}"] * bool(unexpected)
        raise SynflowError(f"the state does not fit the model: it {' and '.join(parts)}; nothing was loaded")
    for name, value in given.items():
        wanted = own[keys[name]]
        if isinstance(wanted, Tensor) and _kind(value) != _kind(wanted):
            raise SynflowError(f"{name}: the state has {_kind(value)}, the model {_kind(wanted)}; nothing was loaded")
    return {keys[name]: value for name, value in given.items()}


def _load(model: nn.Module, state: Mapping[str, Any]) -> None:
    _unwrap(model).load_state_dict(_check_state(model, state))
