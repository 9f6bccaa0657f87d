"""dR/d|w| without holding it: a layer's gradient is a product of two thin matrices, multiplied out a block at a time.

For `y = x W^T` the gradient is `g^T x`, with g = dR/dy; a convolution is the same on the patches of x. One example has
few positions where layers have many weights, so x and g are far smaller than W, and a block of scores S = |w| dR/d|w|
lives only as long as it is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Factors = tuple[Tensor, Tensor]

# With no more positions than this, a product with patches is faster than a convolution; with up to MORE where weights
# are many, since there gradients that are the same at many positions save work.
FEW = 16
MORE = 64
MANY = 1 << 20


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
class Sensitivity:
    """dR/d|w| of one weight tensor, seen as a matrix: a dense part plus products of thin matrices (either may be none).

    `uses` give the pairs (rows x positions, positions x columns) when they are needed.
    """

    shape: torch.Size
    dense: Tensor | None = None
    uses: list[Use] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows the matrix has: the first dimension of the tensor."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        """How many columns: all other dimensions."""
        return self.shape.numel() // max(self.rows, 1)

    def add_dense(self, gradient: Tensor) -> None:
        """Count another use, by its whole gradient."""
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


def capture(
    function: Callable[..., Any], x: Tensor, weight: Tensor, sensitivity: Sensitivity, settings: Sequence[Any]
) -> Tensor | None:
    """`function(x, weight)` for a linear layer or a convolution, whose weight gradient goes to `sensitivity`.

    None where this form of the layer has to be left to autograd. `settings` are what convolutions take after the bias.
    """
    name = getattr(function, "__name__", "")
    result: Tensor
    if name == "linear" and not settings:
        result = _Linear.apply(x, weight, sensitivity, False)
        return result
    if name in ("matmul", "mm") and weight.dim() == 2 and x.dim() >= 2:
        result = _Linear.apply(x, weight, sensitivity, True)
        return result
    dimensions = {"conv1d": 1, "conv2d": 2, "conv3d": 3}.get(name)
    if dimensions is None or x.dim() != dimensions + 2 or any(isinstance(setting, str) for setting in settings):
        return None
    given = list(settings)
    stride, padding, dilation, groups = given + [1, 0, 1, 1][len(given) :]
    how = (_each(stride, dimensions), _each(padding, dimensions), _each(dilation, dimensions), int(groups))
    limit = MORE if weight.numel() >= MANY else FEW
    if dimensions == 2 and how[3] == 1 and len(x) * math.prod(sizes(x.shape, weight.shape, how)) <= limit:
        from .patches import Patches  # built on sensitivities

        result = Patches.apply(x, weight, sensitivity, how)
    else:
        result = _Convolution.apply(x, weight, sensitivity, how)
    return result


def widened(weight: Tensor, sensitivity: Sensitivity, dtype: torch.dtype) -> Tensor:
    """A half-precision weight in the precision of the flow, with a gradient in that precision too."""
    result: Tensor = _Widened.apply(weight, sensitivity, dtype)
    return result


def _each(value: Any, dimensions: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dimensions if len(values) == 1 else values


def is_thin(positions: int, rows: int, columns: int) -> bool:
    """Whether two factors are smaller than their product."""
    return 2 * positions * (rows + columns) <= rows * columns


class _Widened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, sensitivity: Sensitivity, dtype: torch.dtype) -> Tensor:
        ctx.sensitivity = sensitivity
        return weight.to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.sensitivity.add_dense(gradients[0].detach())  # autograd itself would round it to half precision
        return None, None, None


class _Linear(torch.autograd.Function):
    """x W^T, or x W for a weight that is stored input first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sensitivity: Sensitivity, input_first: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sensitivity, ctx.input_first = sensitivity, input_first
        wide = weight.to(x.dtype)  # half-precision weights are widened one layer at a time
        return x @ wide if input_first else F.linear(x, wide)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        wide, sensitivity = weight.to(x.dtype), ctx.sensitivity
        into = gradient @ (wide.t() if ctx.input_first else wide) if ctx.needs_input_grad[0] else None
        sent = gradient.detach().reshape(-1, gradient.shape[-1])
        seen = x.detach().reshape(-1, x.shape[-1])
        left, right = (seen, sent) if ctx.input_first else (sent, seen)
        if is_thin(len(sent), *weight.shape):
            sensitivity.uses.append(Use(left.t(), right))
        else:
            sensitivity.add_dense(left.t() @ right)
        return into, None, None, None


class _Convolution(torch.autograd.Function):
    """A convolution; patches of x are cut out when the factors are asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, sensitivity: Sensitivity, how: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sensitivity, ctx.how = sensitivity, how
        stride, padding, dilation, groups = how
        wide = weight.to(x.dtype)
        return torch.convolution(x, wide, None, stride, padding, dilation, False, [0] * len(stride), groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        rows, kernel = weight.shape[0], weight.shape[2:]
        positions = gradient.numel() // max(rows, 1)
        thin = groups == 1 and len(kernel) == 2 and is_thin(positions, rows, weight.numel() // max(rows, 1))
        wanted = [bool(ctx.needs_input_grad[0]), not thin, False]
        into, whole, _ = torch.ops.aten.convolution_backward(
            gradient, x, weight.to(x.dtype), None, stride, padding, dilation, False, [0] * len(kernel), groups, wanted
        )
        if thin:
            seen, sent = x.detach(), gradient.detach().flatten(2).movedim(1, 0).flatten(1)
            ctx.sensitivity.uses.append(Use(sent, seen, (kernel, stride, padding, dilation)))
        else:
            ctx.sensitivity.add_dense(whole)
        return into, None, None, None


def sizes(x: Sequence[int], weight: Sequence[int], how: Any) -> list[int]:
    """The number of positions of a convolution in each dimension."""
    return [
        (size + 2 * pad - step * (width - 1) - 1) // jump + 1
        for size, width, jump, pad, step in zip(x[2:], weight[2:], *how[:3], strict=True)
    ]


def patches(
    x: Tensor, kernel: torch.Size, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """What the kernel sees at each position: one row per position, one column per weight of a unit."""
    unfolded = F.unfold(x, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))
    return unfolded.transpose(1, 2).flatten(0, 1)
