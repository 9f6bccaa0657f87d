"""Where the weights of a tensor that was cut lie in the whole one: indices per dimension, not per weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..support.chunked import four_bytes_do

# Indices that stay along each dimension, in order; where they depend on the group of a row, one list per group.
Kept = Mapping[int, Sequence[Any]]


@dataclass(frozen=True)
class IndexMap:
    """For each dimension of a cut tensor the indices in the whole one, of `shape`; a line per row where rows differ."""

    shape: torch.Size
    lines: tuple[Tensor, ...]

    @staticmethod
    def of(tensor: Tensor) -> IndexMap:
        """Of a tensor that is still whole.

        >>> IndexMap.of(torch.ones(2, 3)).cut({0: [1], 1: [0, 2]}).flat()
        tensor([[3, 5]], dtype=torch.int32)
        """
        kind = torch.int32 if four_bytes_do(tensor) else torch.int64
        return IndexMap(
            tensor.shape, tuple(torch.arange(size, dtype=kind, device=tensor.device) for size in tensor.shape)
        )

    def cut(self, kept: Kept) -> IndexMap:
        """After another cut."""
        lines = list(self.lines)
        for dim, indices in sorted(kept.items()):
            chosen = torch.tensor(indices, dtype=torch.long, device=lines[dim].device)
            if chosen.dim() == 2:
                rows = len(lines[0])
                by_row = lines[dim].expand(rows, -1)
                lines[dim] = by_row.gather(1, chosen.repeat_interleave(rows // len(chosen), 0))
            else:
                lines[dim] = lines[dim].index_select(-1, chosen)
            if dim == 0:
                lines[1:] = [line.index_select(0, chosen) if line.dim() == 2 else line for line in lines[1:]]
        return IndexMap(self.shape, tuple(lines))

    def flat(self) -> Tensor:
        """Flat positions in the whole tensor, in the shape of the cut one."""
        total = torch.zeros((), dtype=self.lines[0].dtype if self.lines else torch.int64)
        for dim, line in enumerate(self.lines):
            sizes = [1] * len(self.lines)
            sizes[dim] = line.shape[-1]
            if line.dim() == 2:
                sizes[0] = len(line)
            total = total.to(line.device) + line.view(sizes) * math.prod(self.shape[dim + 1 :])
        return total

    def at(self, positions: Tensor) -> Tensor:
        """Where flat positions in the cut tensor lie in the whole one.

        >>> IndexMap.of(torch.ones(2, 3)).cut({0: [1], 1: [0, 2]}).at(torch.tensor([1]))
        tensor([5])
        """
        if all(line.dim() == 1 and len(line) == size for line, size in zip(self.lines, self.shape, strict=True)):
            return positions  # nothing has been cut yet
        return self.flat().view(-1)[positions].long()


def outside(mask: Tensor, kept: Kept) -> Tensor:
    """Flat positions of what a mask keeps and a cut does not.

    >>> outside(torch.ones(2, 3, dtype=torch.bool), {0: [1], 1: [0, 2]})
    tensor([0, 1, 2, 4])
    """
    inside = torch.ones((), dtype=torch.bool, device=mask.device)
    for dim, indices in kept.items():
        chosen = torch.tensor(indices, dtype=torch.long, device=mask.device)
        sizes = [1] * mask.dim()
        sizes[dim] = mask.shape[dim]
        if chosen.dim() == 2:
            sizes[0] = len(mask)
            flags = torch.zeros(len(chosen), mask.shape[dim], dtype=torch.bool, device=mask.device)
            flags = flags.scatter_(1, chosen, True).repeat_interleave(len(mask) // len(chosen), 0)
        else:
            flags = torch.zeros(mask.shape[dim], dtype=torch.bool, device=mask.device).index_fill_(0, chosen, True)
        inside = inside & flags.view(sizes)
    left = (mask & ~inside).reshape(-1)
    if left.device.type != "cpu":
        return torch.nonzero(left).view(-1)
    return torch.from_numpy(np.flatnonzero(left.numpy()))  # torch takes several times as long
