"""Sparse convolution and fused batch norm as differentiable operations on groups of images."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import conv_kernels, norm_kernels

__all__ = ["Pattern", "batch_norm", "pattern_of", "sparse_convolution"]

# From this many numbers on the loops are divided among torch's threads: below, starting threads takes longer.
PARALLEL = 1 << 17


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the kept weights of a convolution are: their index in the weight, output channel, and offsets per size."""

    index: Tensor
    outputs: Any
    inputs: Any
    rows: Any
    columns: Any
    channels: tuple[int, int]
    kernel: tuple[int, int]
    stride: int
    padding: int

    @cached_property
    def transposed(self) -> Pattern:
        """The pattern of the gradient of the input: weights mirrored, inputs and outputs exchanged."""
        order = np.argsort(self.inputs, kind="stable")
        return Pattern(
            self.index[torch.from_numpy(order)], self.inputs[order], self.outputs[order],
            self.kernel[0] - 1 - self.rows[order], self.kernel[1] - 1 - self.columns[order],
            self.channels[::-1], self.kernel, 1, self.kernel[0] - 1 - self.padding,
        )  # fmt: skip

    @cached_property
    def first(self) -> Any:
        """Where the weights of each output channel begin."""
        return np.searchsorted(self.outputs, np.arange(self.channels[0] + 1))

    @lru_cache(maxsize=16)  # noqa: B019 -- patterns live as long as the process trains their network
    def places(self, height: int, width: int, wide: int) -> tuple[Any, tuple[int, int, int, int], tuple[int, int]]:
        """Offsets in the work space for images of this size, the shape of the work space and of the output."""
        rows, columns = height + 2 * self.padding, -(-(width + 2 * self.padding) // self.stride)
        line = self.stride * columns * wide
        column = self.columns % self.stride * columns + self.columns // self.stride
        out = tuple((size + 2 * self.padding - k) // self.stride + 1
                    for size, k in zip((height, width), self.kernel, strict=True))  # fmt: skip
        found = (self.inputs * rows + self.rows) * line + column * wide
        return found, (self.padding, self.stride, rows, columns), (out[0], out[1])


def pattern_of(layer: nn.Conv2d, mask: Tensor | None) -> Pattern:
    """The pattern of a layer's mask; without a mask all weights are kept."""
    shape = tuple(layer.weight.shape)
    kept = np.ones(shape, bool) if mask is None else mask.numpy()
    outputs, inputs, rows, columns = np.nonzero(kept)
    index = torch.from_numpy(np.flatnonzero(kept))
    return Pattern(index, outputs, inputs, rows, columns, (shape[0], shape[1]), (shape[2], shape[3]),
                   layer.stride[0], int(layer.padding[0]))  # fmt: skip


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, pattern: Pattern) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pattern, ctx.bias = pattern, bias is not None
        return _convolved(x, weight, bias, pattern)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        pattern, dy = ctx.pattern, dy.contiguous()
        dx = None
        if ctx.needs_input_grad[0]:
            if pattern.stride == 1 and pattern.kernel[0] > pattern.padding:
                dx = _convolved(dy, weight, None, pattern.transposed)
            else:
                dx = torch.empty_like(x)
                places, shape, _ = pattern.places(*x.shape[2:])
                values = weight.detach().reshape(-1)[pattern.index].numpy()
                _each((dy.flatten(3), dx), lambda g, out: conv_kernels.input_gradient(
                    g, pattern.first, places, values, shape, out))  # fmt: skip
        to_weight, to_bias = _weight_gradient(x, dy, pattern)
        return dx, to_weight.view_as(weight), to_bias if ctx.bias else None, None


def sparse_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, pattern: Pattern) -> Tensor:
    """The convolution of groups of images with the kept weights."""
    found: Tensor = _Convolution.apply(x, weight, bias, pattern)
    return found


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, pattern: Pattern) -> Tensor:
    places, shape, size = pattern.places(*x.shape[2:])
    y = torch.empty(x.shape[0], pattern.channels[0], *size, x.shape[4])
    values = weight.detach().reshape(-1)[pattern.index].numpy()
    start = torch.zeros(pattern.channels[0]) if bias is None else bias.detach()
    first, starts = pattern.first, start.numpy()
    _each((x.detach(), y.flatten(3)), lambda image, out: conv_kernels.convolve(
        image, first, places, values, starts, shape, out))  # fmt: skip
    return y


def _weight_gradient(x: Tensor, dy: Tensor, pattern: Pattern) -> tuple[Tensor, Tensor]:
    places, shape, _ = pattern.places(*x.shape[2:])

    def one(image: Any, grads: Any) -> Any:
        part = np.zeros(len(places)), np.zeros(pattern.channels[0])
        conv_kernels.weight_gradient(image, pattern.first, places, shape, grads, *part)
        return part

    parts = _each((x.detach(), dy.flatten(3)), one)
    size = pattern.channels[0] * pattern.channels[1] * pattern.kernel[0] * pattern.kernel[1]
    to_weight = torch.zeros(size)
    to_weight[pattern.index] = torch.from_numpy(sum(part[0] for part in parts)).float()
    return to_weight, torch.from_numpy(sum(part[1] for part in parts)).float()


def batch_norm(z: Tensor, norm: nn.BatchNorm2d, other: Tensor | None, relu: bool, pool: bool) -> Tensor:
    """`norm(z)`, plus `other`, its positive part, the largest of each 2x2 window; running statistics as torch does."""
    if norm.training:
        found: Tensor = _BatchNorm.apply(z, norm.weight, norm.bias, other, norm, relu, pool)
        return found
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return _normalised(z, scale, norm.bias - norm.running_mean * scale, other, relu, pool)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, norm: nn.BatchNorm2d, relu: bool,
        pool: bool,
    ) -> Tensor:  # fmt: skip
        mean, variance = _statistics(z)
        _track(norm, mean, variance, z.numel() // z.shape[1])
        inverse = (variance + norm.eps).rsqrt()
        scale = (weight.double() * inverse).float()
        shift = (bias.double() - mean * weight.double() * inverse).float()
        y = _normalised(z, scale, shift, other, relu, pool)
        ctx.save_for_backward(z, y if other is not None else None, mean, inverse, scale, shift)
        ctx.relu, ctx.pool, ctx.added = relu, pool, other is not None
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        z, y, mean, inverse, scale, shift = ctx.saved_tensors
        slope = slope.contiguous()
        kept = torch.empty_like(slope) if ctx.added else None
        first, second = _gradient_sums(ctx, z, slope, y, kept, mean.float(), scale, shift)
        to_weight, number = second * inverse, z.numel() // z.shape[1]
        constant = (-scale.double() * first / number).float().numpy()
        factor = (-scale.double() * to_weight * inverse / number).float().numpy()
        dz, given = torch.empty_like(z), slope if kept is None else kept
        about = mean.float().numpy(), scale.numpy(), shift.numpy()
        if ctx.pool:
            _each((z, given, dz), lambda a, b, out: norm_kernels.gradient_pooled(a, b, *about, constant, factor, out))
        else:
            relu = ctx.relu and kept is None
            lines = z.flatten(2), given.flatten(2), dz.flatten(2)
            _each(lines, lambda a, b, out: norm_kernels.gradient(a, b, *about, relu, constant, factor, out))
        return dz, to_weight.float(), first.float(), kept, None, None, None


def _statistics(z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, in float64: sums about the first number, which is close to the mean."""
    origin, number = z[0, :, 0, 0, 0].contiguous(), z.numel() // z.shape[1]
    about = origin.numpy()
    first, second = _summed((z.flatten(2),), z.shape[1], lambda a, *out: norm_kernels.moments(a, about, *out))
    distance = first / number
    return origin.double() + distance, (second / number - distance.square()).clamp_min(0)


@torch.no_grad()
def _track(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, number: int) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    norm.running_mean.lerp_(mean.to(norm.running_mean), norm.momentum)
    unbiased = variance * (number / max(number - 1, 1))
    norm.running_var.lerp_(unbiased.to(norm.running_var), norm.momentum)


def _normalised(z: Tensor, scale: Tensor, shift: Tensor, other: Tensor | None, relu: bool, pool: bool) -> Tensor:
    k, t = scale.detach().numpy(), shift.detach().numpy()
    if pool:
        groups, channels, height, width, wide = z.shape
        y = torch.empty(groups, channels, height // 2, width // 2, wide)
        _each((z, y), lambda a, out: norm_kernels.normalise_pooled(a, k, t, out))
        return y
    y = torch.empty_like(z)
    none = torch.empty(z.shape[0], z.shape[1], 0)
    lines = z.flatten(2), none if other is None else other.flatten(2), y.flatten(2)
    _each(lines, lambda a, b, out: norm_kernels.normalise(a, k, t, b, out, relu))
    return y


def _gradient_sums(
    ctx: Any, z: Tensor, slope: Tensor, y: Tensor | None, kept: Tensor | None, mean: Tensor, scale: Tensor,
    shift: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sums over each channel of the gradient after ReLU and pooling, and of its product with the input."""
    about = mean.numpy(), scale.numpy(), shift.numpy()
    if ctx.pool:
        return _summed((z, slope), z.shape[1], lambda a, b, *out: norm_kernels.sums_pooled(a, b, *about, *out))
    mode = 2 if kept is not None else 1 if ctx.relu else 0
    lines = [tensor.flatten(2) for tensor in (z, slope, z if y is None else y, slope if kept is None else kept)]
    return _summed(tuple(lines), z.shape[1],
                   lambda a, b, c, d, *out: norm_kernels.sums(a, b, *about, mode, c, d, *out))  # fmt: skip


def _summed(images: tuple[Tensor, ...], channels: int, loop: Callable[..., None]) -> tuple[Tensor, Tensor]:
    """Two sums per channel over all groups, in float64."""

    def one(*arrays: Any) -> Any:
        part = np.zeros((2, channels))
        loop(*arrays, *part)
        return part

    total = torch.from_numpy(sum(_each(images, one)))
    return total[0], total[1]


def _each(images: tuple[Tensor, ...], loop: Callable[..., Any]) -> list[Any]:
    """What a loop returns for equal parts of the groups, as arrays, in as many threads as torch uses."""
    groups = len(images[0])
    arrays = [tensor.detach().numpy() for tensor in images]
    parts = min(torch.get_num_threads(), groups) if images[0].numel() >= PARALLEL else 1
    if parts == 1:
        return [loop(*arrays)]
    cuts = [k * groups // parts for k in range(parts + 1)]
    futures = [_pool(parts).submit(loop, *(array[cuts[k] : cuts[k + 1]] for array in arrays)) for k in range(parts)]
    return [future.result() for future in futures]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "synflow-training")
