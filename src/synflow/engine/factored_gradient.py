"""dR/d|w| without holding it: a layer's gradient is a product of two thin matrices, multiplied out a block at a time.

For `y = x W^T` the gradient is `g^T x`, with g = dR/dy; a convolution is the same on the patches of x. One example has
few positions where layers have many weights, so x and g are far smaller than W, and a block of scores S = |w| dR/d|w|
lives only as long as it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Factors = tuple[Tensor, Tensor]

# With more positions than this, rounding would make the bounds of scores useless.
THIN = 1 << 10
# Where scores are bounded, few entries of the product are needed: its factors may hold this many times its numbers,
THICK = 1.25
# or this many numbers (1 MB in float32), however few the product has.
FREE = 1 << 18


@dataclass(frozen=True)
class Use:
    """One use of a weight: what left it (rows x positions) and what entered (positions x columns).

    With `windows` (kernel, stride, padding, dilation) what entered is an image, from which patches are cut when needed.
    """

    left: Tensor
    right: Tensor
    windows: tuple[Any, ...] | None = None

    def factors(self) -> Factors:
        """The thin pair, made now."""
        return self.left, self.right if self.windows is None else patches(self.right, *self.windows)


@dataclass
class FactoredGradient:
    """dR/d|w| of one weight tensor, seen as a matrix: a dense part plus products of thin matrices (either may be none).

    `uses` give the pairs (rows x positions, positions x columns) when they are needed. With `bounded`, few scores will
    be made, by their bounds: then factors may be as large as their product, which would cost more to make. `flow` is
    the flow of the layer: the sum of all its scores.
    """

    shape: torch.Size
    dense: Tensor | None = None
    uses: list[Use] = field(default_factory=list)
    bounded: bool = False
    flow: Tensor | None = None

    @property
    def rows(self) -> int:
        """How many rows the matrix has: the first dimension of the tensor."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        """How many columns: all other dimensions."""
        return self.shape.numel() // max(self.rows, 1)

    def is_thin(self, positions: int) -> bool:
        """Whether to leave a use as factors, with so many positions."""
        factors, product = positions * (self.rows + self.columns), self.rows * self.columns
        if self.bounded and positions <= THIN and factors <= max(THICK * product, FREE):
            return True
        return 2 * factors <= product

    def add_flow(self, flow: Tensor) -> None:
        """Count the flow y dR/dy that leaves a use: the sum of the scores of its weights."""
        self.flow = flow if self.flow is None else self.flow + flow

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Count another use, whose gradient is a product; it stays one where that is smaller."""
        if self.is_thin(len(right)):
            self.uses.append(Use(left, right))
        else:
            self.add_dense(left @ right)

    def add_dense(self, gradient: Tensor) -> None:
        """Count another use, by its whole gradient."""
        gradient = gradient.reshape(self.shape)
        self.dense = gradient if self.dense is None else self.dense + gradient

    def factors(self) -> list[Factors]:
        """The thin pairs, made now; keep them while blocks are read, then let them go."""
        return [use.factors() for use in self.uses]

    def block(self, factors: list[Factors], start: int, stop: int, out: Tensor) -> Tensor:
        """Rows `start` to `stop` of the gradient, written into `out`."""
        if self.dense is not None:
            out.copy_(self.dense.reshape(self.rows, self.columns)[start:stop])
        elif not factors:
            return out.zero_()
        for index, (left, right) in enumerate(factors):
            first = index == 0 and self.dense is None
            torch.mm(left[start:stop], right, out=out) if first else out.addmm_(left[start:stop], right)
        return out

    def blocks(self, factors: list[Factors], size: int, like: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """The gradient, about `size` entries at a time: first row, last row, block, which the next one overwrites."""
        step = max(1, min(self.rows, size // max(self.columns, 1)))
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        room = torch.empty(step, self.columns, dtype=dtype, device=like.device)
        for start in range(0, self.rows, step):
            stop = min(start + step, self.rows)
            yield start, stop, self.block(factors, start, stop, room[: stop - start])

    def largest(self, factors: list[Factors]) -> float:
        """A bound on all entries, not a number or infinite where one may be."""
        bound = 0.0 if self.dense is None or not self.dense.numel() else _top(self.dense)
        for left, right in factors:
            if left.numel() and right.numel():
                bound += _top(left) * _top(right) * len(right)
        return bound

    def at(self, factors: list[Factors], positions: Tensor) -> Tensor:
        """The gradient at some flat positions."""
        row, column = positions // self.columns, positions % self.columns
        total = None if self.dense is None else self.dense.reshape(-1)[positions]
        for left, right in factors:
            part = (left[row] * right.t()[column]).sum(1)
            total = part if total is None else total + part
        return torch.zeros(len(positions), device=positions.device) if total is None else total


def _top(tensor: Tensor) -> float:
    """The largest entry. On a processor by one thread: waking torch's others would cost more, and they spin on."""
    return float(np.max(tensor.numpy())) if tensor.device.type == "cpu" else float(tensor.amax())


def patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """What the kernel of a convolution sees: one row per position, one column per weight of a unit."""
    return F.unfold(x, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride)).transpose(1, 2).flatten(0, 1)
