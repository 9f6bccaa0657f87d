"""How much memory a piece of work takes at most, on a GPU or the CPU; and how to take less."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .private_torch import TorchDispatchMode, pytree

__all__ = ["give_back", "peak_memory"]


def peak_memory(run: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Bytes of tensors alive at the worst moment, on top of those that were there before.

    >>> peak_memory(lambda: (torch.ones(1000) + 1).sum())
    8000
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        peak: int = torch.cuda.max_memory_allocated(device)
        return peak - before
    with _Watch() as watch:
        run()
    return int(watch.peak)


def give_back() -> None:
    """Have the C library return the memory that was freed but not yet given back; not all libraries can.

    The holes that images leave behind fit no other image of their size: glibc looks for a little more room than it
    needs, for the sake of alignment. A pass that makes and frees many of them holds half as much again in holes.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc, not Linux
        return None


class _Watch(TorchDispatchMode):
    """Counts the storages that operations make and those that are freed; torch's CPU allocator keeps no count."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_address(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.note(tensor, known)
        return result

    def note(self, tensor: Tensor, known: set[int]) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in known or address in self.seen or not storage.nbytes():
            return
        self.seen.add(address)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.forget, address, storage.nbytes())

    def forget(self, address: int, size: int) -> None:
        self.seen.discard(address)
        self.now -= size


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
