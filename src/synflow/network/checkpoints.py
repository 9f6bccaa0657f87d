"""Runs checkpointed parts of a model as ordinary calls, because checkpoints interfere with the gradients of scores.

A checkpoint runs its part of the model again in the backward pass. The older form (`use_reentrant=True`) works only
with `loss.backward()` and has no second derivative. The newer form would use the weights at the time of the backward
pass, which a score may have replaced.
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


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Call checkpointed functions directly in this thread; other threads are not affected."""
    thread = threading.get_ident()
    usual_newer: Any = getattr(torch_checkpoint, NEWER_CHECKPOINT, None)

    def older(cls: Any, function: Any, preserve: bool, *args: Any) -> Any:
        usual: Any = Function.__dict__["apply"]
        ours = threading.get_ident() == thread
        return function(*args) if ours else usual.__func__(cls, function, preserve, *args)

    def newer(*args: Any, **kwargs: Any) -> Any:
        # Torch runs this generator before (up to `yield`) and after the call; in our thread it does nothing.
        yield from (None,) if threading.get_ident() == thread else usual_newer(*args, **kwargs)

    with SEEDING:  # one thread at a time replaces, and restores, functions that all threads use
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
