"""Operations of our own (torch.library), so that a recording of tensor operations sees each as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("synflow", "FRAGMENT")

# What each operation comes down to, for whoever need not ask torch which is meant.
DIRECT: dict[Any, Callable[..., Tensor]] = {}


def operation(schema: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make an operation of a function; it is not to be differentiated."""
    name = schema.split("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    made: Callable[..., Tensor] = getattr(torch.ops.synflow, name).default
    DIRECT[made] = function
    return made
