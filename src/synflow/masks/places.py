"""Where a model holds its parameters: under which names, in which modules, whatever the model is wrapped in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..network.wrappers import dense_name, unwrap

__all__ = ["Place", "is_sharded", "local_parts", "named_weights", "places", "weights_at"]


class Place(NamedTuple):
    """A place that holds a parameter: the parameter's name there, the module, and the attribute."""

    name: str
    module: nn.Module
    attribute: str


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


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor: only those have a mesh, and asking for it does not import torch.distributed."""
    return hasattr(tensor, "device_mesh")


def local_parts(parameter: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's part of a parameter and of its mask; every rank holds the whole mask."""
    if not is_sharded(parameter):
        return parameter, mask
    from torch.distributed.tensor import DTensor, Replicate

    sharded: Any = parameter
    mesh = sharded.device_mesh
    whole: Any = mask
    if not is_sharded(mask):
        whole = DTensor.from_local(mask, mesh, [Replicate()] * mesh.ndim, run_check=False)
    weight: Tensor = sharded.to_local()
    part: Tensor = whole.redistribute(mesh, sharded.placements).to_local()  # takes a slice, without communication
    return weight, part.to(weight.device)
