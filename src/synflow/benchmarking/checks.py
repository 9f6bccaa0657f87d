"""What is refused before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from ..compaction.record.tape import tensors_in
from ..errors import SynflowError, brief
from ..network.private_copy import arguments, whole_copy

__all__ = ["check_counts", "check_runs"]

# Repeats, warm-up rounds and threads that can be asked for: more is a typing error.
MOST = 100_000


def check_counts(repeats: Any, warmup: Any, threads: Any, *batches: Any) -> None:
    """Refuse counts that are none."""
    own = 1 if threads is None else threads
    for name, count, least in (("repeats", repeats, 1), ("warmup", warmup, 0), ("threads", own, 1)):
        if not _is_whole(count) or not least <= count <= MOST:
            raise SynflowError(f"{name} must be at least {least}, a whole number up to {MOST}, got {brief(count)}")
    for sizes in batches:
        if not isinstance(sizes, Sequence) or not all(_is_whole(size) and size >= 1 for size in sizes):
            raise SynflowError(f"batch sizes must be a list of whole numbers of at least 1, got {brief(sizes)}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_runs(name: str, model: nn.Module, example: Any, loss: Callable[[Any], Any]) -> None:
    """Refuse an example, a network or a loss that fails when it is run."""
    given = tensors_in(example)
    empty = [tuple(tensor.shape) for tensor in given if tensor.dim() and not tensor.shape[0]]
    if empty:
        raise SynflowError(f"the example has a tensor of shape {empty[0]}, which holds nothing; give a batch of one")
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given) or "none"
    try:
        args, kwargs = arguments(example)
        with torch.no_grad():
            value = loss(whole_copy(model).eval()(*args, **kwargs))
    except Exception as cause:
        raise SynflowError(
            f"the {name} network, or the loss of its outputs, fails on an example of shape {shapes}: "
            f"{type(cause).__name__}: {cause}; pass an example that the model takes"
        ) from cause
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise SynflowError(f"loss must return a tensor with one element, got {brief(value)}")
