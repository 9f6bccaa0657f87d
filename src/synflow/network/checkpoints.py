"""Checkpointed parts of a model as ordinary calls, where a checkpoint would be in the way of gradients.

A checkpoint runs its part of the model again in the backward pass. The older form (`use_reentrant=True`) works only
with `loss.backward()` and has no second derivative. The newer one would run with the weights that are in place by
then, which a score may have replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint as torch_checkpoint
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from ..support.private_torch import NEWER_CHECKPOINT

__all__ = ["without_checkpoints"]

_lock = threading.Lock()
_threads: dict[int, int] = {}  # threads that are inside, and how deep
_usual_newer: Any = getattr(torch_checkpoint, NEWER_CHECKPOINT, None)


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """In this thread checkpointed functions are just called; those of other threads go on as ever."""
    thread = threading.get_ident()
    with _lock:
        _threads[thread] = _threads.get(thread, 0) + 1
        setattr(CheckpointFunction, "apply", classmethod(_older))  # noqa: B010 -- what mypy takes for a mistake
        if _usual_newer is not None:
            setattr(torch_checkpoint, NEWER_CHECKPOINT, _newer)
    try:
        yield
    finally:
        with _lock:
            _threads[thread] -= 1
            if not _threads[thread]:
                del _threads[thread]
            if not _threads:
                delattr(CheckpointFunction, "apply")
                if _usual_newer is not None:
                    setattr(torch_checkpoint, NEWER_CHECKPOINT, _usual_newer)


def _older(cls: Any, function: Any, preserve: bool, *args: Any) -> Any:
    if threading.get_ident() in _threads:
        return function(*args)
    usual: Any = Function.__dict__["apply"]
    return usual.__func__(cls, function, preserve, *args)


def _newer(*args: Any, **kwargs: Any) -> Any:
    """What torch runs before the call of the function (up to `yield`) and after it: nothing, in our threads."""
    if threading.get_ident() in _threads:
        yield
    else:
        yield from _usual_newer(*args, **kwargs)
