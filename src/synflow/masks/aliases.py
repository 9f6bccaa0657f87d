"""Aliases: masked weights that a model also holds outside of its parameters (in a list, a dict, an object, as a view).

An alias is the parameter itself, or shares its memory, and no property hides its pruned entries. So they are zeroed
before each forward pass of the module that holds it (and after each optimizer step), and its gradient is masked. Values
that a user writes there are visible until then; `attach` warns about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import warn
from ..network.shared_memory import held_beside, overlapping
from ..network.wrappers import unwrap
from .checks import places
from .masked_modules import MASK_SUFFIX, mask_of, masked_names, zero_pruned


@dataclass(frozen=True)
class _Guard:
    """A forward pre-hook of a module that holds an alias of a masked weight."""

    layer: nn.Module
    name: str

    def __call__(self, *_: Any) -> None:
        parameter = self.layer._parameters.get(self.name)
        if parameter is None or torch.compiler.is_compiling():
            return
        zero_pruned(self.layer)
        if parameter.requires_grad and self.mask_gradient not in (parameter._backward_hooks or {}).values():
            parameter.register_hook(self.mask_gradient)  # here, since copies of a parameter have no hooks

    def mask_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient with zeros where the weight is pruned."""
        masked = self.name in masked_names(self.layer)
        return torch.where(mask_of(self.layer, self.name), gradient, 0) if masked else gradient


def guard_aliases(model: nn.Module, masked: Iterable[str]) -> None:
    """Keep the pruned entries of aliases of the named weights zero, and warn about the aliases."""
    found = places(model)
    weights = {name: found[name][0].weight for name in masked}
    holders = {f"model.{path}": (module, tensor) for module, path, tensor in _beside(unwrap(model))}
    for name, path in overlapping(weights, {path: tensor for path, (_, tensor) in holders.items()}):
        if path in holders:
            holder, guard = holders[path][0], _Guard(found[name][0].module, found[name][0].attribute)
            if guard not in holder._forward_pre_hooks.values():
                holder.register_forward_pre_hook(guard)
            warn(
                f"{name} is also held by {path}, where no mask can hide what is written by hand; pruned entries are "
                "set to zero there before each forward pass and after each step of an optimizer. To be safe, use the "
                "weight by its name in forward, and write to it inside `with synflow.unmasked(model):`"
            )


def forget_aliases(module: nn.Module) -> None:
    """Remove the hooks of `guard_aliases` from a module."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, _Guard):
            del module._forward_pre_hooks[key]


def _beside(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Tensors that modules hold outside of their parameters, with their paths in the model."""
    paths = {module: f"{path}." if path else "" for path, module in model.named_modules()}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not name.endswith(MASK_SUFFIX):
                yield module, paths[module] + name, buffer
    for module, path, tensor in held_beside(model):
        if f"{path}_orig" not in module._parameters:  # made by an old-style spectral norm
            yield module, paths[module] + path, tensor
