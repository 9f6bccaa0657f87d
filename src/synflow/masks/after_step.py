"""Pruned weights are zero again after each step of an optimizer, whatever moved them.

A masked module reads them as zero anyway. But where masks are attached amid training momentum goes on moving the
parameter itself, and code that reads parameters around their modules (a penalty over `model.parameters()`, a list that
holds a weight as well) would see it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["zero_after_each_step"]

Zero = Callable[[nn.Module], None]

_LOCK = threading.Lock()
_ZEROS: weakref.WeakKeyDictionary[nn.Module, Zero] = weakref.WeakKeyDictionary()
_HOOKS: list[Any] = []  # the one hook, once there is a masked module


def zero_after_each_step(module: nn.Module, zero: Zero) -> None:
    """Call `zero(module)` after each step of an optimizer that holds a parameter of the module, while it lives."""
    with _LOCK:
        _ZEROS[module] = zero
        if not _HOOKS:
            _HOOKS.append(register_optimizer_step_post_hook(_after_step))


def _after_step(optimizer: Any, *_: Any) -> None:
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    with _LOCK:
        found = [(module, zero) for module, zero in _ZEROS.items()]
    for module, zero in found:
        if any(id(parameter) in stepped for parameter in module._parameters.values()):
            zero(module)
