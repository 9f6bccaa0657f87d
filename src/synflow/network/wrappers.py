"""Models inside the wrappers of torch, which change the names of parameters."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from ..errors import SynflowError

Model = TypeVar("Model", bound=nn.Module)

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel)
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")  # torch.compile and checkpoint_wrapper put these into names


def unwrap(model: Model) -> Model:
    """The model that was compiled, averaged or made parallel."""
    if not isinstance(model, nn.Module):
        raise SynflowError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    while isinstance(model, _WRAPPERS) or "_orig_mod" in getattr(model, "_modules", ()):
        model = model.module if isinstance(model, _WRAPPERS) else model._modules["_orig_mod"]  # type: ignore[assignment]
    return model


def dense_name(name: str) -> str:
    """The name that a parameter has in the model before parts of it were compiled or checkpointed."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPED)
