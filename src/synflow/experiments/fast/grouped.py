"""A network on groups of images: sparse convolutions, and batch norms fused with the layers that follow them.

Convolutions of compact networks are narrow and still sparse: VGG-11 at 1000x keeps 39% of its multiplications.
A dense library multiplies by the zeros, and spends two thirds of a training step on the layers between convolutions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from synflow.masks.masked_modules import mask_of, masked_names
from synflow.models.built_in import Residual

from .operations import batch_norm, pattern_of, sparse_convolution

__all__ = ["Grouped", "grouped", "multiplied"]

# Images of a group: 32 float32 numbers are four AVX2 registers, and the input rows of 64 channels of 32 columns take
# 0.8 MB, about a second-level cache. Batches that 32 does not divide form groups of their greatest common divisor.
GROUP = 32
# Networks in which convolutions keep less than this share of their multiplications are trained sparse. Measured with
# benchmarks/training.py: sparse loops reach about two thirds of the speed of a dense library per multiplication.
SPARSE = 0.6


class Grouped(nn.Module):
    """A network that takes images, works on groups of them, and shares all parameters and buffers with its original."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: Tensor) -> Tensor:
        """Outputs of a batch of images."""
        batch, channels, height, width = images.shape
        wide = math.gcd(batch, GROUP)
        groups = images.contiguous().view(batch // wide, wide, channels * height * width).transpose(1, 2).contiguous()
        found: Tensor = self.body(groups.view(-1, channels, height, width, wide))
        return found


class SparseConv(nn.Module):
    """A convolution with the kept weights of a layer."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer, self.pattern = layer, pattern_of(layer, _mask(layer))

    def forward(self, x: Tensor) -> Tensor:
        # The parameter itself, not the property that masks it: the pattern does the masking.
        weight = self.layer._parameters["weight"]
        assert weight is not None
        return sparse_convolution(x, weight, self.layer.bias, self.pattern)


class FusedNorm(nn.Module):
    """A batch norm with the addition, the ReLU and the 2x2 max pooling that follow it."""

    def __init__(self, norm: nn.BatchNorm2d, relu: bool = False, pool: bool = False) -> None:
        super().__init__()
        self.norm, self.relu, self.pool = norm, relu, pool

    def forward(self, z: Tensor, other: Tensor | None = None) -> Tensor:
        return batch_norm(z, self.norm, other, self.relu, self.pool)


class GroupedResidual(nn.Module):
    """relu(norm(branch(x)) + shortcut(x))."""

    def __init__(self, branch: nn.Module, norm: FusedNorm, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.norm, self.shortcut = branch, norm, shortcut

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.branch(x), self.shortcut(x))
        return found


class Average(nn.Module):
    """The mean of each channel, one row for each image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)).transpose(1, 2).reshape(-1, x.shape[1])


def grouped(model: nn.Module, image: tuple[int, int, int]) -> Grouped | None:
    """The network on groups of images, or None where that is not faster or a layer is not one of those it knows.

    It knows plain sequences and residual blocks of convolutions, batch norms, ReLUs, 2x2 max pooling, global average
    pooling and a linear layer at the end, in float32 on the CPU, without hooks. Train it in place of the model: both
    are one set of weights.
    """
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in model.parameters()):
        return None
    kept, all_of_them = multiplied(model, image)
    layers = _sequence(model) if kept < SPARSE * all_of_them else None
    return None if layers is None else Grouped(nn.Sequential(*layers))


def multiplied(model: nn.Module, image: tuple[int, int, int]) -> tuple[int, int]:
    """Multiplications of a forward pass by kept weights, and by all weights, of the convolutions."""
    counts = [0, 0]

    def count(layer: nn.Conv2d, _: object, y: Tensor) -> None:
        mask, pixels = _mask(layer), y.shape[2] * y.shape[3]
        whole = layer._parameters["weight"].numel()  # type: ignore[union-attr]
        counts[0] += pixels * (whole if mask is None else int(mask.sum()))
        counts[1] += pixels * whole

    handles = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Conv2d)]
    training = model.training
    with torch.no_grad():
        model.eval()(torch.zeros(1, *image))
    model.train(training)
    for handle in handles:
        handle.remove()
    return counts[0], counts[1]


def _mask(layer: nn.Module) -> Tensor | None:
    return mask_of(layer, "weight") if "weight" in masked_names(layer) else None


def _sequence(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a module on groups of images, None if it is not known."""
    if _hooked(module):
        return None
    if type(module) is Residual:
        block = _residual(module)
        return None if block is None else [block]
    if type(module) is not nn.Sequential:
        return None
    layers, found = list(module), list[nn.Module]()
    while layers:
        known = _next(layers)
        if known is None:
            return None
        found += known
    return found


def _next(layers: list[nn.Module]) -> list[nn.Module] | None:
    """Translate the first layer, or the first few, and take them off the list."""
    layer = layers.pop(0)
    if _hooked(layer):
        return None
    if _is_conv(layer):
        return [SparseConv(layer)]  # type: ignore[arg-type]
    if _is_norm(layer):
        relu = bool(layers) and type(layers[0]) is nn.ReLU and not _hooked(layers[0])
        pool = relu and len(layers) > 1 and _is_pool(layers[1])
        del layers[: relu + pool]
        return [FusedNorm(layer, relu, pool)]  # type: ignore[arg-type]
    if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
        flat = bool(layers) and type(layers[0]) is nn.Flatten and layers[0].start_dim == 1
        del layers[:flat]
        return [Average()] if flat else None
    if isinstance(layer, nn.Linear | nn.Identity):
        return [layer]
    return _sequence(layer)


def _residual(module: Residual) -> nn.Module | None:
    branch = list(module.branch) if type(module.branch) is nn.Sequential else []
    if not branch or not _is_norm(branch[-1]):
        return None
    inner = _sequence(nn.Sequential(*branch[:-1]))
    shortcut = [nn.Identity()] if type(module.shortcut) is nn.Identity else _sequence(module.shortcut)
    if inner is None or shortcut is None:
        return None
    return GroupedResidual(nn.Sequential(*inner), FusedNorm(branch[-1], relu=True), nn.Sequential(*shortcut))  # type: ignore[arg-type]


def _is_conv(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Conv2d) or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    square = layer.stride[0] == layer.stride[1] and layer.padding[0] == layer.padding[1]
    return square and layer.groups == 1 and layer.dilation == (1, 1) and layer.kernel_size[0] == layer.kernel_size[1]


def _is_norm(layer: nn.Module) -> bool:
    plain = type(layer) is nn.BatchNorm2d and not _hooked(layer)
    return plain and bool(layer.affine and layer.track_running_stats) and layer.momentum is not None


def _is_pool(layer: nn.Module) -> bool:
    if type(layer) is not nn.MaxPool2d or _hooked(layer) or layer.return_indices or layer.ceil_mode:
        return False
    shape = [value if isinstance(value, tuple) else (value, value) for value in (layer.kernel_size, layer.stride)]
    return shape == [(2, 2), (2, 2)] and layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
