"""Where a model holds its parameters: under which names, in which modules, whatever the model is wrapped in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Place", "dense_name", "named_weights", "places", "unwrap"]

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel)
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")  # torch.compile and checkpoint_wrapper put these into names


class Place(NamedTuple):
    """A place that holds a parameter: the parameter's name there, the module, and the attribute."""

    name: str
    module: nn.Module
    attribute: str


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch that put a prefix before names."""
    while isinstance(model, _WRAPPERS):
        model = model.module
    return model


def dense_name(name: str) -> str:
    """The name that a parameter has in the model before it was compiled or checkpointed."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPED)


def places(model: nn.Module) -> dict[str, list[Place]]:
    """Where each parameter is held, a tied one in several places under its first name."""
    found: dict[str, list[Place]] = {}
    first_names: dict[Tensor, str] = {}
    for prefix, module in unwrap(model).named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                name = dense_name(f"{prefix}.{attribute}" if prefix else attribute)
                found.setdefault(first_names.setdefault(parameter, name), []).append(Place(name, module, attribute))
    return found


def named_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, under its first name in the dense model."""
    return weights_at(places(model))


def weights_at(found: Mapping[str, list[Place]]) -> dict[str, nn.Parameter]:
    """The parameters that lie at places."""
    weights = {name: first.module._parameters[first.attribute] for name, (first, *_) in found.items()}
    return {name: weight for name, weight in weights.items() if weight is not None}
