"""Memory: the peak of a computation, on a GPU or the CPU, returning freed memory, and the layout of images."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .private_torch import DispatchMode, pytree

Model = TypeVar("Model", bound=nn.Module)


def peak_memory(run: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The peak number of bytes in tensors, on top of those that existed before.

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
    """Ask the C library to return freed memory to the system; not all libraries can.

    The holes that freed images leave do not fit other images of the same size: for alignment, glibc looks for slightly
    more room than needed. A pass that makes and frees many images wastes half as much memory again in holes.
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


def channels_last(model: Model) -> Model:
    """Store the weights with channels innermost, in place: this is fastest for most convolutions on CPUs."""
    module: Any = model  # torch's type hints allow this argument only together with others
    module.to(memory_format=torch.channels_last)
    return model


def images_channels_last(inputs: Any) -> Any:
    """The same nested inputs with every image in channels-last layout."""

    def fit(leaf: Any) -> Any:
        images = isinstance(leaf, Tensor) and leaf.dim() == 4
        return leaf.contiguous(memory_format=torch.channels_last) if images else leaf

    return pytree.tree_map(fit, inputs)


class _Watch(DispatchMode):
    """Counts the storages that operations make and free; torch's CPU allocator keeps no count."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {storage.data_ptr() for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            address, size = storage.data_ptr(), storage.nbytes()
            if size and address not in known and address not in self.seen:
                self.seen.add(address)
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.forget, address, size)
        return result

    def forget(self, address: int, size: int) -> None:
        self.seen.discard(address)
        self.now -= size


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
