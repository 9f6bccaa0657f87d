"""The networks of the pruning-at-initialisation papers, in plain torch layers.

Weights come from torch's global generator, so seed it before `build`. Convolutions and linear layers are Kaiming
normal, biases zero, batch norms the identity.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SynflowError, choose

# A name stands for three forms of a network; the shorter side of the images selects one. Images smaller than the first
# number get the CIFAR form, smaller than the second the Tiny ImageNet form, others the ImageNet form.
TINY_IMAGENET_SIDE = 64
IMAGENET_SIDE = 128

Shape = tuple[int, ...]


def build(
    name: str | Callable[..., nn.Module], classes: int = 10, input_shape: Shape = (3, 32, 32), **options: object
) -> nn.Module:
    """Build a network by name; images of 64 pixels or more, and of 128 or more, get larger forms of the network.

    >>> sum(weight.numel() for weight in build("vgg16_bn", classes=100).parameters() if weight.dim() > 1)
    14761664
    >>> build("resnet18", classes=1000, input_shape=(3, 224, 224)).stem[0]
    Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)
    """
    factory = name if callable(name) else choose("model", name, MODELS, "(classes, input_shape) -> model")
    model: nn.Module = factory(classes, tuple(input_shape), **options)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def _image(input_shape: Shape, side: int) -> tuple[int, int]:
    """Channels and shorter side of an image at least `side` pixels wide and high."""
    if len(input_shape) != 3 or min(input_shape[1:]) < side:
        raise SynflowError(
            f"input_shape {input_shape} does not fit this network; "
            f"give (channels, height, width) with at least {side} x {side} pixels"
        )
    return input_shape[0], min(input_shape[1:])


def _scaled(channels: int, width: float) -> int:
    """The number of channels, `width` times as many."""
    return max(1, round(channels * width))


def _classified(classifier: nn.Module, pooled: int = 1, **parts: nn.Module) -> nn.Module:
    """The parts in order, the mean over the image (or over each of `pooled` x `pooled` fields), and a linear layer."""
    end = {"pool": nn.AdaptiveAvgPool2d(pooled), "flatten": nn.Flatten(), "classifier": classifier}
    return nn.Sequential(OrderedDict(parts | end))


# Small networks


def _fc(classes: int, input_shape: Shape, depth: int = 6, width: int = 100) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise([math.prod(input_shape), *[width] * (depth - 1), classes]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _conv(classes: int, input_shape: Shape, depth: int = 3, width: int = 32) -> nn.Module:
    channels, _ = _image(input_shape, side=1)
    layers: list[nn.Module] = []
    for inputs in [channels, *[width] * (depth - 2)]:
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * math.prod(input_shape[1:]), classes))


# VGG (Simonyan, Zisserman 2015). The CIFAR form has one linear layer and leaves out the fifth pooling; the other two
# end in three linear layers, 1024 wide for 64-pixel images and 4096 wide for ImageNet.

VGG_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
VGG_WIDTHS = (64, 128, 256, 512, 512)


def _vgg(depth: int, batch_norm: bool, classes: int, input_shape: Shape, width: float = 1.0) -> nn.Module:
    channels, side = _image(input_shape, side=16)
    features: list[nn.Module] = []
    for full, repeats in zip(VGG_WIDTHS, VGG_DEPTHS[depth], strict=True):
        outputs = _scaled(full, width)
        for _ in range(repeats):
            norm = [nn.BatchNorm2d(outputs)] if batch_norm else []
            features += [nn.Conv2d(channels, outputs, 3, padding=1), *norm, nn.ReLU(inplace=True)]
            channels = outputs
        features.append(nn.MaxPool2d(2))
    if side < TINY_IMAGENET_SIDE:
        return _classified(nn.Linear(channels, classes), features=nn.Sequential(*features[:-1]))
    pooled, inner = (2, _scaled(1024, width)) if side < IMAGENET_SIDE else (7, _scaled(4096, width))
    layers: list[nn.Module] = []
    for inputs in (channels * pooled**2, inner):
        layers += [nn.Linear(inputs, inner), nn.ReLU(inplace=True), nn.Dropout()]
    classifier = nn.Sequential(*layers, nn.Linear(inner, classes))
    return _classified(classifier, pooled, features=nn.Sequential(*features))


# ResNet (He et al. 2016), with a 1x1 convolution on the shortcut where shapes change.


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


def _basic(width: int, inner: int, stride: int) -> list[Shape]:
    """Channels, kernel and stride of two 3x3 convolutions."""
    return [(inner, 3, stride), (width, 3, 1)]


def _bottleneck(width: int, inner: int, stride: int) -> list[Shape]:
    """Channels, kernel and stride of 1x1, 3x3 and 1x1 convolutions."""
    return [(inner, 1, 1), (inner, 3, stride), (4 * width, 1, 1)]


def _residual(inputs: int, convolutions: list[Shape], stride: int) -> Residual:
    channels, branch = inputs, list[nn.Module]()
    for outputs, *how in convolutions:
        branch += [*_conv_norm(channels, outputs, *how), nn.ReLU()]
        channels = outputs
    same = inputs == channels and stride == 1
    shortcut = nn.Identity() if same else nn.Sequential(*_conv_norm(inputs, channels, 1, stride))
    return Residual(nn.Sequential(*branch[:-1]), shortcut)


Form = tuple[Callable[[int, int, int], list[Shape]], Shape, int]  # block, blocks per stage, channels of the first stage


def _resnet(form: Form, widen: int, classes: int, input_shape: Shape, width: float = 1.0) -> nn.Module:
    """A stem, then stages of blocks that halve the image and double the channels, `widen` times as many inside a block.

    The three stages of the CIFAR form follow a 3x3 stem, and so do the four of the ImageNet form if images are small.
    """
    block, depths, first = form
    channels, side = _image(input_shape, side=2 ** (len(depths) - 1))
    inputs = _scaled(first, width)
    if len(depths) == 3 or side < IMAGENET_SIDE:
        stem = [*_conv_norm(channels, inputs, 3), nn.ReLU()]
    else:
        stem = [*_conv_norm(channels, inputs, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels, stages = inputs, []
    for stage, repeats in enumerate(depths):
        blocks = []
        for index in range(repeats):
            stride = 2 if stage > 0 and index == 0 else 1
            convolutions = block(inputs * 2**stage, inputs * 2**stage * widen, stride)
            blocks.append(_residual(channels, convolutions, stride))
            channels = convolutions[-1][0]
        stages.append(nn.Sequential(*blocks))
    return _classified(nn.Linear(channels, classes), stem=nn.Sequential(*stem), stages=nn.Sequential(*stages))


# MobileNet v2 (Sandler et al. 2018) for small images: depthwise convolutions between 1x1 ones, linear bottlenecks.


class InvertedResidual(nn.Module):
    """branch(x), plus x where the shapes allow it; no activation follows."""

    def __init__(self, branch: nn.Module, skips: bool) -> None:
        super().__init__()
        self.branch = branch
        self.skips = skips

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + y if self.skips else y


# Channels, blocks and stride of each stage, of a network for images of 32 pixels.
MOBILENET_STAGES = ((16, 1, 1), (24, 2, 2), (40, 2, 2), (80, 2, 1))
EXPANSION = 4


def _mobilenet(classes: int, input_shape: Shape, width: float = 1.0) -> nn.Module:
    inputs, _ = _image(input_shape, side=8)
    channels, last = _scaled(16, width), _scaled(160, width)
    stem, blocks = [*_conv_norm(inputs, channels, 3), nn.ReLU()], list[nn.Module]()
    for full, repeats, stride in MOBILENET_STAGES:
        for step in (stride, *[1] * (repeats - 1)):
            inner, outputs = channels * EXPANSION, _scaled(full, width)
            branch = [*_conv_norm(channels, inner, 1), nn.ReLU()]
            branch += [*_conv_norm(inner, inner, 3, step, groups=inner), nn.ReLU(), *_conv_norm(inner, outputs, 1)]
            blocks.append(InvertedResidual(nn.Sequential(*branch), skips=step == 1 and channels == outputs))
            channels = outputs
    head = nn.Sequential(*_conv_norm(channels, last, 1), nn.ReLU())
    return _classified(nn.Linear(last, classes), stem=nn.Sequential(*stem), blocks=nn.Sequential(*blocks), head=head)


# A small vision transformer (Dosovitskiy et al. 2021): norms come first, and the mean over patches is classified.


class SelfAttention(nn.Module):
    """Self-attention over all patches, with queries, keys and values in one layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, patches, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, patches, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, patches, -1)
        return self.projection(mixed)  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then the same with two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        changed: Tensor = self.mlp(self.norm2(x))
        return x + changed


class Patches(nn.Module):
    """Square patches of an image as vectors, each with its position added."""

    def __init__(self, channels: int, shape: Shape, side: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(channels, width, side, side)
        self.places = nn.Parameter(torch.randn(1, (shape[0] // side) * (shape[1] // side), width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        vectors: Tensor = self.cut(x).flatten(2).transpose(1, 2)
        return vectors + self.places


class MeanOverPatches(nn.Module):
    """The mean over all patches: one vector per image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _vit(classes: int, input_shape: Shape, width: float = 1.0, depth: int = 6, patch: int = 4) -> nn.Module:
    """A vision transformer of `depth` blocks with four heads; `width` multiplies its 128 channels."""
    channels, _ = _image(input_shape, side=patch)
    heads = 4
    inner = heads * _scaled(128 // heads, width)
    patches = Patches(channels, input_shape[1:], patch, inner)
    blocks = nn.Sequential(*(TransformerBlock(inner, heads) for _ in range(depth)))
    end = {"norm": nn.LayerNorm(inner), "pool": MeanOverPatches(), "classifier": nn.Linear(inner, classes)}
    return nn.Sequential(OrderedDict(patches=patches, blocks=blocks, **end))


RESNETS: dict[int, Form] = {
    **{depth: (_basic, ((depth - 2) // 6,) * 3, 16) for depth in (20, 32, 44, 56, 110, 1202)},
    18: (_basic, (2, 2, 2, 2), 64),
    34: (_basic, (3, 4, 6, 3), 64),
    50: (_bottleneck, (3, 4, 6, 3), 64),
    101: (_bottleneck, (3, 4, 23, 3), 64),
}
MODELS: dict[str, Callable[..., nn.Module]] = {
    "fc": _fc,
    "conv": _conv,
    **{f"vgg{depth}": partial(_vgg, depth, False) for depth in VGG_DEPTHS},
    **{f"vgg{depth}_bn": partial(_vgg, depth, True) for depth in VGG_DEPTHS},
    **{f"resnet{depth}": partial(_resnet, form, 1) for depth, form in RESNETS.items()},
    "mobilenet": _mobilenet,
    "vit": _vit,
    **{f"wide_resnet{depth}": partial(_resnet, RESNETS[depth], 2) for depth in (18, 50)},
}
