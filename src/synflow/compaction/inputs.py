"""Inputs like the example: in double precision, random, fewer, of other sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..support.private_torch import pytree
from .record.tape import tensors_in

__all__ = ["inputs_like", "resized", "shortened"]

LARGE = 100_000  # numbers in an example, from which on no longer one is tried


def inputs_like(example: Any, seed: int | None, repeat: int = 1, dtype: torch.dtype | None = torch.float64) -> Any:
    """The example, or random numbers in place of its floating tensors; without a `dtype` each keeps its own."""
    generator = torch.Generator().manual_seed(seed or 0)

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.detach().cpu().clone()
        if repeat > 1 and leaf.dim():
            leaf = leaf.repeat_interleave(repeat, 0)
        if not leaf.is_floating_point():
            return leaf
        own = leaf.dtype if dtype is None else dtype
        return leaf.to(own) if seed is None else torch.randn(leaf.shape, generator=generator, dtype=own)

    return pytree.tree_map(convert, _plain(example))


def shortened(example: Any) -> list[Any]:
    """The first two of a batch, if all tensors have one length: they tell as much as all."""
    lengths = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors_in(example)}
    if len(lengths) != 1 or lengths.pop() <= 2:
        return []
    return [pytree.tree_map(lambda leaf: leaf[:2] if isinstance(leaf, Tensor) else leaf, _plain(example))]


def resized(example: Any) -> Iterator[Any]:
    """The example with one more in the batch and other lengths of sequences and images; then with one of the two."""
    given = tensors_in(example)
    seen = [[tensor.shape for tensor in given]]
    factor = 2 if sum(tensor.numel() for tensor in given) <= LARGE else 1

    def change(leaf: Any, more: int, place: int | None) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return leaf
        for dim in _positions(leaf, place):
            longer = factor * leaf.shape[dim] if leaf.dim() < 4 and factor > 1 else (leaf.shape[dim] + 1) // 2
            places = torch.arange(longer, device=leaf.device) * leaf.shape[dim] // longer
            leaf = leaf.index_select(dim, places)
        return torch.cat([leaf, leaf[:more]])

    for more, place in ((1, 1), (1, 2), (1, None), (0, 1), (0, 2)):
        other = pytree.tree_map(partial(change, more=more, place=place), _plain(example))
        shapes = [tensor.shape for tensor in tensors_in(other)]
        if shapes not in seen:
            seen.append(shapes)
            yield other


def _positions(tensor: Tensor, place: int | None) -> Iterable[int]:
    """Dimensions that may be positions: those of an image, of a sequence of vectors the given one, of numbers all."""
    if place is None:
        return ()
    if tensor.is_floating_point():
        return range(2, tensor.dim()) if tensor.dim() > 3 else [place] if tensor.dim() == 3 else ()
    return range(1, tensor.dim())


def _plain(example: Any) -> Any:
    return dict(example) if isinstance(example, Mapping) and not isinstance(example, dict) else example
