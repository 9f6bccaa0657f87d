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
from ..support.random_state import SEEDING

__all__ = ["without_checkpoints"]


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """In this thread checkpointed functions are just called; those of other threads go on as ever."""
    thread = threading.get_ident()
    usual_newer: Any = getattr(torch_checkpoint, NEWER_CHECKPOINT, None)

    def older(cls: Any, function: Any, preserve: bool, *args: Any) -> Any:
        usual: Any = Function.__dict__["apply"]
        ours = threading.get_ident() == thread
        return function(*args) if ours else usual.__func__(cls, function, preserve, *args)

    def newer(*args: Any, **kwargs: Any) -> Any:
        # What torch runs before the call of the function (up to `yield`) and after it: nothing, in our thread.
        yield from (None,) if threading.get_ident() == thread else usual_newer(*args, **kwargs)

    with SEEDING:  # one thread at a time replaces, and puts back, what all of them use
        if "apply" in vars(CheckpointFunction):  # this thread did already
            yield
            return
        setattr(CheckpointFunction, "apply", classmethod(older))  # noqa: B010 -- what mypy takes for a mistake
        setattr(torch_checkpoint, NEWER_CHECKPOINT, newer)
        try:
            yield
        finally:
            delattr(CheckpointFunction, "apply")
            setattr(torch_checkpoint, NEWER_CHECKPOINT, usual_newer)
