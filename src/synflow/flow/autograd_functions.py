"""Custom autograd functions in a flow pass: what their forward does counts, not the backward written for training.

A checkpoint is such a function as well: its backward would run the model again, without the stand-ins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from .dispatch import pass_under_way
from .tensor import flows


class _Context:
    """What `forward` of a custom function gets as `ctx`: it may put anything there, nobody reads it."""

    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Nothing is kept."""

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_backward


@contextmanager
def forward_only() -> Iterator[None]:
    """While a pass runs, functions that get a flow in this thread run as their forward; all others as ever."""
    usual: Any = Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
        if ours or not pass_under_way() or not flows((args, kwargs)):
            return usual.__func__(cls, *args, **kwargs)
        if cls is CheckpointFunction:
            return args[0](*args[2:])
        separate = cls.setup_context is not Function.setup_context
        return cls.forward(*args, **kwargs) if separate else cls.forward(_Context(), *args, **kwargs)

    setattr(Function, "apply", classmethod(apply))  # noqa: B010 -- what mypy takes for a mistake
    try:
        yield
    finally:
        setattr(Function, "apply", usual)  # noqa: B010
