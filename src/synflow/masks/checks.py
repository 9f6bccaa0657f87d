"""Checks of masks: they must be boolean tensors, each with the name and shape of a weight of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from ..network.selection import check_separate, spectral_normed
from ..network.shared_memory import check_unshared
from ..network.wrappers import dense_name, unwrap
from ..support.torch_modes import plain_tensors


class Place(NamedTuple):
    """A place that holds a parameter: the parameter's name there, the module, the attribute, and the parameter."""

    name: str
    module: nn.Module
    attribute: str
    weight: nn.Parameter


def places(model: nn.Module) -> dict[str, list[Place]]:
    """The places of each parameter, also in a wrapped model; a tied parameter has several, under its first name."""
    found: dict[str, list[Place]] = {}
    first_names: dict[Tensor, str] = {}
    for prefix, module in unwrap(model).named_modules():
        for attribute, weight in module._parameters.items():
            if weight is not None:
                name = dense_name(f"{prefix}.{attribute}" if prefix else attribute)
                place = Place(name, module, attribute, weight)
                found.setdefault(first_names.setdefault(weight, name), []).append(place)
    return found


def named_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, under its first name in the dense model."""
    return {name: first.weight for name, (first, *_) in places(model).items()}


def check_mapping(masks: object, hint: str = "") -> None:
    """Refuse anything but a mapping."""
    if not isinstance(masks, Mapping):
        raise SynflowError(
            f"masks must be a dict of boolean tensors by parameter name, got {type(masks).__name__}{hint}"
        )


def check_any(masks: Mapping[str, Any], purpose: str) -> None:
    """Refuse to do something with no masks at all."""
    if not masks:
        raise SynflowError(f"there are no masks to {purpose}; make some with synflow.prune(model, example, ...)")


def check_boolean(name: str, mask: object) -> None:
    """Refuse a mask that is not a boolean tensor."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise SynflowError(f"{name}: a mask is a boolean tensor, True where a weight is kept, got {got}; try mask != 0")
    if mask.layout != torch.strided:
        raise SynflowError(f"{name}: a mask is a dense tensor, got {mask.layout}; try mask.to_dense()")


def check_mask(name: str, mask: Any, weight: Tensor) -> None:
    """Refuse a mask that does not fit its weight."""
    check_boolean(name, mask)
    if mask.shape != weight.shape:
        raise SynflowError(
            f"{name}: the mask has shape {tuple(mask.shape)}, the weight {tuple(weight.shape)}; "
            "were the masks made for another architecture?"
        )
    check_separate(name, weight)


def check_masks(masks: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse masks unless each fits a weight of the model."""
    found = places(model)
    check_mapping(masks)
    unknown = [str(name) for name in masks if name not in found]
    if unknown:
        tied = {place.name for held in found.values() for place in held[1:]}
        why = "these are further names of tied weights; use the first one" if tied.issuperset(unknown) else (
            "take the names from model.named_parameters(), without a wrapper's prefix"
        )  # fmt: skip
        raise SynflowError(f"the model has no parameter {some(unknown)}; it has {some(found)}; {why}")
    weights = named_weights(model)
    normed = spectral_normed(model)
    for name, mask in masks.items():
        weight = weights[name]
        if isinstance(weight, nn.parameter.UninitializedParameter):
            raise SynflowError(f"{name}: the weight has no shape yet; run a batch through the model first")
        check_mask(name, mask, weight)
        if name in normed and not mask.is_meta and not bool(mask.any()):
            raise SynflowError(
                f"{name}: the mask keeps nothing, and a spectral norm would divide zero by zero; prune with "
                f"protect={name!r}, or remove the norm first"
            )
        if weight.is_meta or mask.is_meta:
            raise SynflowError(f"{name}: no values on the meta device; materialize the model first, then attach")
        if any(isinstance(place.module, torch.jit.ScriptModule) for place in found[name]):
            raise SynflowError(f"{name} is in a TorchScript module, which cannot be masked; attach, bake, then script")
    check_unshared({name: weights[name] for name in masks}, weights)


@plain_tensors
def full_masks(masks: Mapping[str, Tensor] | None, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A read-only mask for each weight; a missing mask is a single True, expanded, which takes no memory."""
    full = {
        name: torch.ones((), dtype=torch.bool, device=weight.device).expand(weight.shape)
        for name, weight in weights.items()
    }
    if masks is None:
        return full
    check_mapping(masks)
    unknown = sorted(str(name) for name in masks if name not in full)
    if unknown:
        raise SynflowError(
            f"masks name {unknown[0]!r}, which is not among the prunable weights ({some(full, 3)}); "
            "pass the same select and protect as when they were made"
        )
    for name, mask in masks.items():
        check_mask(name, mask, weights[name])
        full[name] = mask.to(full[name].device).clone(memory_format=torch.contiguous_format)
    return full


def some(names: Iterable[str], most: int = 5) -> str:
    """The first names of a list, and the number of other names.

    >>> some(["a", "b", "c"], 2), some([])
    ('a, b and 1 more', 'none')
    """
    names = list(names)
    return (", ".join(names[:most]) or "none") + (f" and {len(names) - most} more" if len(names) > most else "")
