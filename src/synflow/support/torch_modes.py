"""Modes of torch, entered so that an interrupt cannot leave them active."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from .private_torch import modes_entered, pop_mode

P = ParamSpec("P")
R = TypeVar("R")


def plain_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function outside of inference mode, because autograd refuses inference tensors."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return run


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function outside of the caller's autocast and inference mode: the flow chooses its own precision."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda"):
            return plain_tensors(function)(*args, **kwargs)
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return plain_tensors(function)(*args, **kwargs)

    return run


def with_gradients(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function outside of the caller's `torch.inference_mode` and `torch.no_grad`."""
    return torch.inference_mode(False)(torch.enable_grad()(function))


class SafeMode(TorchFunctionMode):
    """Restores the depth of torch's stack of modes, even after Ctrl-C inside torch's own bookkeeping."""

    def __init__(self) -> None:
        super().__init__()
        self._depths: list[int] = []

    @property
    def entered(self) -> bool:
        """Whether this mode is in force."""
        return bool(self._depths)

    def __enter__(self) -> Any:
        self._depths.append(modes_entered())
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pop_modes(self._depths.pop())


def pop_modes(depth: int) -> None:
    """Pop modes off torch's stack down to a depth."""
    while modes_entered() > depth:
        pop_mode()
