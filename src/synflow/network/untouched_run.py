"""A plain run of a model on a copy that shares its parameters; they stay as they are even if forward writes to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch import Tensor, nn

from ..support.private_torch import TorchDispatchMode, pytree
from ..support.torch_modes import SafeMode
from .private_copy import private_copy, whole_copy
from .shared_memory import address

R = TypeVar("R")


class _WritesError(Exception):
    """A forward pass was about to write into a parameter."""


def run_untouched(model: nn.Module, run: Callable[[nn.Module], R]) -> R:
    """What a function returns that runs a copy of the model as it is; no parameter of the model is written to.

    The copy shares the parameters. If its forward pass writes into one, the function gets a copy that shares nothing.
    """
    twin = private_copy(model)
    try:
        with _NoWrites(twin.parameters()), _NoSetting():
            return run(twin)
    except _WritesError:
        return run(whole_copy(model))


class _NoWrites(TorchDispatchMode):
    """Refuses operations that write into the memory of some tensors, before they do."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._addresses = {address(tensor) for tensor in tensors} - {0}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes two seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = args[position] if position < len(args) else kwargs.get(argument.name)
                for leaf in pytree.tree_leaves(written):
                    if isinstance(leaf, Tensor) and address(leaf) in self._addresses:
                        raise _WritesError
        return func(*args, **kwargs)


class _NoSetting(SafeMode):
    """Refuses `parameter.data = tensor`, which no dispatch mode sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__set__" and isinstance(args[0], nn.Parameter):
            raise _WritesError
        return func(*args, **(kwargs or {}))
