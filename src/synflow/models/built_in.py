"""The networks of the pruning-at-initialisation papers, in plain torch layers.

Weights come from torch's global generator, so seed it before `build`. Convolutions and linear layers are Kaiming
normal, biases zero, batch norms the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from synflow.errors import choose

from .parts import Shape, image, scaled, sequence
from .vision_transformer import vision_transformer

__all__ = ["MODELS", "Residual", "build"]

# A name stands for three forms of a network; the shorter side of the images selects one. Images below the first
# number get the CIFAR form, below the second the Tiny ImageNet form, others the ImageNet form.
TINY_IMAGENET_SIDE = 64
IMAGENET_SIDE = 128


def build(
    name: str | Callable[..., nn.Module],
    classes: int = 10,
    input_shape: Shape = (3, 32, 32),
    **options: object,
) -> nn.Module:
    """Build a network by name; images of 64 and of 128 pixels and more get the network's larger forms.

    >>> sum(weight.numel() for weight in build("vgg16_bn", classes=100).parameters() if weight.dim() > 1)
    14761664
    >>> build("resnet18", classes=1000, input_shape=(3, 224, 224)).stem[0]
    Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)
    """
    factory = name if callable(name) else choose("model", name, MODELS, "(classes, input_shape) -> model")
    model: nn.Module = factory(classes, tuple(input_shape), **options)
    _initialise(model)
    return model


def _initialise(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# Small networks


def _fc(classes: int, input_shape: Shape, depth: int = 6, width: int = 100) -> nn.Module:
    sizes = [math.prod(input_shape), *[width] * (depth - 1), classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _conv(classes: int, input_shape: Shape, depth: int = 3, width: int = 32) -> nn.Module:
    channels, _ = image(input_shape, side=1)
    layers: list[nn.Module] = []
    for inputs in [channels, *[width] * (depth - 2)]:
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * math.prod(input_shape[1:]), classes))


# VGG (Simonyan, Zisserman 2015). The CIFAR form has one linear layer and leaves out the fifth pooling; the other two
# end in three linear layers, 1024 wide for 64-pixel images and 4096 wide for ImageNet.

VGG_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
VGG_WIDTHS = (64, 128, 256, 512, 512)


def _vgg(depth: int, batch_norm: bool, classes: int, input_shape: Shape, width: float = 1.0) -> nn.Module:
    channels, side = image(input_shape, side=16)
    features: list[nn.Module] = []
    for full, repeats in zip(VGG_WIDTHS, VGG_DEPTHS[depth], strict=True):
        outputs = scaled(full, width)
        for _ in range(repeats):
            norm = [nn.BatchNorm2d(outputs)] if batch_norm else []
            features += [nn.Conv2d(channels, outputs, 3, padding=1), *norm, nn.ReLU(inplace=True)]
            channels = outputs
        features.append(nn.MaxPool2d(2))
    classifier: nn.Module
    if side < TINY_IMAGENET_SIDE:
        features.pop()
        pooled, classifier = 1, nn.Linear(channels, classes)
    elif side < IMAGENET_SIDE:
        pooled, classifier = 2, _three_linear(channels * 2 * 2, scaled(1024, width), classes)
    else:
        pooled, classifier = 7, _three_linear(channels * 7 * 7, scaled(4096, width), classes)
    return sequence(
        features=nn.Sequential(*features),
        pool=nn.AdaptiveAvgPool2d(pooled),
        flatten=nn.Flatten(),
        classifier=classifier,
    )


def _three_linear(inputs: int, width: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(width, width),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(width, classes),
    )


# ResNet (He et al. 2016), with a 1x1 convolution on the shortcut where shapes change.


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


def _residual(inputs: int, outputs: int, stride: int, branch: list[nn.Module]) -> Residual:
    same = inputs == outputs and stride == 1
    shortcut = nn.Identity() if same else nn.Sequential(*_conv_norm(inputs, outputs, 1, stride))
    return Residual(nn.Sequential(*branch), shortcut)


def _basic(inputs: int, width: int, stride: int, widen: int) -> tuple[nn.Module, int]:
    """Two 3x3 convolutions, `width * widen` channels between them."""
    inner = width * widen
    branch = [*_conv_norm(inputs, inner, 3, stride), nn.ReLU(), *_conv_norm(inner, width, 3)]
    return _residual(inputs, width, stride, branch), width


def _bottleneck(inputs: int, width: int, stride: int, widen: int) -> tuple[nn.Module, int]:
    """1x1, 3x3 and 1x1 convolutions, `width * widen` channels between them and `4 * width` after."""
    inner, outputs = width * widen, width * 4
    branch = [
        *_conv_norm(inputs, inner, 1),
        nn.ReLU(),
        *_conv_norm(inner, inner, 3, stride),
        nn.ReLU(),
        *_conv_norm(inner, outputs, 1),
    ]
    return _residual(inputs, outputs, stride, branch), outputs


Block = Callable[[int, int, int, int], tuple[nn.Module, int]]


def _resnet(stem: list[nn.Module], block: Block, depths: Shape, width: int, widen: int, classes: int) -> nn.Module:
    """A stem that gives `width` channels, then stages of blocks that halve the image and double the width."""
    channels, stages = width, []
    for stage, repeats in enumerate(depths):
        blocks = []
        for index in range(repeats):
            stride = 2 if stage > 0 and index == 0 else 1
            layer, channels = block(channels, width * 2**stage, stride, widen)
            blocks.append(layer)
        stages.append(nn.Sequential(*blocks))
    return sequence(
        stem=nn.Sequential(*stem),
        stages=nn.Sequential(*stages),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(channels, classes),
    )


def _cifar_resnet(depth: int, classes: int, input_shape: Shape, width: float = 1.0) -> nn.Module:
    """Three stages of 16, 32 and 64 channels; depth = 6 * blocks per stage + 2."""
    channels, _ = image(input_shape, side=4)
    first = scaled(16, width)
    stem = [*_conv_norm(channels, first, 3), nn.ReLU()]
    return _resnet(stem, _basic, ((depth - 2) // 6,) * 3, first, 1, classes)


def _imagenet_resnet(
    block: Block, depths: Shape, widen: int, classes: int, input_shape: Shape, width: float = 1.0
) -> nn.Module:
    """Four stages of 64 to 512 channels; small images keep their size in a 3x3 stem."""
    channels, side = image(input_shape, side=8)
    first = scaled(64, width)
    if side < IMAGENET_SIDE:
        stem = [*_conv_norm(channels, first, 3), nn.ReLU()]
    else:
        stem = [*_conv_norm(channels, first, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return _resnet(stem, block, depths, first, widen, classes)


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
    channels, _ = image(input_shape, side=8)
    first, last = scaled(16, width), scaled(160, width)
    stem = [*_conv_norm(channels, first, 3), nn.ReLU()]
    blocks, channels = list[nn.Module](), first
    for full, repeats, stride in MOBILENET_STAGES:
        for index in range(repeats):
            outputs, step = scaled(full, width), stride if index == 0 else 1
            inner = channels * EXPANSION
            depthwise = nn.Conv2d(inner, inner, 3, step, 1, groups=inner, bias=False)
            branch = [
                *_conv_norm(channels, inner, 1), nn.ReLU(), depthwise, nn.BatchNorm2d(inner), nn.ReLU(),
                *_conv_norm(inner, outputs, 1),
            ]  # fmt: skip
            blocks.append(InvertedResidual(nn.Sequential(*branch), skips=step == 1 and channels == outputs))
            channels = outputs
    return sequence(
        stem=nn.Sequential(*stem),
        blocks=nn.Sequential(*blocks),
        head=nn.Sequential(*_conv_norm(channels, last, 1), nn.ReLU()),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(last, classes),
    )


MODELS: dict[str, Callable[..., nn.Module]] = {
    "fc": _fc,
    "conv": _conv,
    **{f"vgg{depth}": partial(_vgg, depth, False) for depth in VGG_DEPTHS},
    **{f"vgg{depth}_bn": partial(_vgg, depth, True) for depth in VGG_DEPTHS},
    **{f"resnet{depth}": partial(_cifar_resnet, depth) for depth in (20, 32, 44, 56, 110, 1202)},
    "resnet18": partial(_imagenet_resnet, _basic, (2, 2, 2, 2), 1),
    "resnet34": partial(_imagenet_resnet, _basic, (3, 4, 6, 3), 1),
    "resnet50": partial(_imagenet_resnet, _bottleneck, (3, 4, 6, 3), 1),
    "resnet101": partial(_imagenet_resnet, _bottleneck, (3, 4, 23, 3), 1),
    "mobilenet": _mobilenet,
    "vit": vision_transformer,
    "wide_resnet18": partial(_imagenet_resnet, _basic, (2, 2, 2, 2), 2),
    "wide_resnet50": partial(_imagenet_resnet, _bottleneck, (3, 4, 6, 3), 2),
}
