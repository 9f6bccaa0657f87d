"""Where a model holds its parameters: under which names, in which modules, whatever the model is wrapped in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from ..network.wrappers import dense_name, unwrap

__all__ = ["Place", "named_weights", "places", "weights_at"]


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
