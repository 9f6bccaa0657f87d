"""Random networks for property tests: chains, residual, concatenating, grouped, attention, gated."""

from itertools import pairwise
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import nn

from blocks import Add, Cat, CausalAttention, EinsumAttention, Gate, Mean, RMSNorm, SelfAttention, residual

sizes = st.integers(1, 6)
depths = st.integers(1, 6)
activations = st.sampled_from([nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Tanh, nn.Identity])


class Network(NamedTuple):
    """A model in eval mode and an example for it; `kind` says how it is wired."""

    kind: str
    model: nn.Module
    example: torch.Tensor


@st.composite
def networks(draw, kinds=None, zeros=True, dtype=torch.float32):
    """A network of one of the kinds (all of KINDS by default).

    Widths are 1 to 6 and depths 1 to 6, with or without biases and norms. Norms sometimes look trained: random gains,
    shifts and statistics. With `zeros`, some weights are exactly zero now and then, so that a network may carry no
    flow at all. The example is a batch of two or three, on which batch norms can also be trained.
    """
    kind = draw(st.sampled_from(sorted(kinds or KINDS)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
        layers, shape = KINDS[kind](draw)
        model = nn.Sequential(*layers)
        if draw(st.booleans()):
            _look_trained(model)
        if zeros and draw(st.integers(0, 3)) == 0:
            _set_some_weights_to_zero(model, draw(st.sampled_from([0.1, 0.5])))
        example = torch.randn(draw(st.integers(2, 3)), *shape)
    return Network(kind, model.eval().to(dtype), example.to(dtype))


def chains(**options):
    """Networks in which every path goes once through every layer."""
    return networks(kinds=("mlp", "conv"), **options)


def _look_trained(model):
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm | RMSNorm):
            nn.init.normal_(module.weight)
            if getattr(module, "bias", None) is not None:
                nn.init.normal_(module.bias)
        if isinstance(module, nn.modules.batchnorm._NormBase):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.1, 2)


def _set_some_weights_to_zero(model, fraction):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= torch.rand_like(parameter) >= fraction


# Each kind draws the layers of a network and the shape of one of its inputs.


def _mlp(draw):
    widths = draw(st.lists(sizes, min_size=2, max_size=7))
    bias, act = draw(st.booleans()), draw(activations)
    norm = draw(st.sampled_from([None, nn.BatchNorm1d, nn.LayerNorm]))
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias), *([norm(outputs)] if norm else []), act()]
    return layers[:-1], widths[:1]


def _conv_layers(draw, channels, side, depth, bias):
    """A chain of convolutions that keeps images at least one pixel wide; its layers and what comes out."""
    act = draw(activations)
    norm = draw(st.sampled_from([None, nn.BatchNorm2d, lambda width: nn.GroupNorm(1, width)]))
    layers = []
    for _ in range(depth):
        outputs, kernel, stride = draw(sizes), draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 1, 2]))
        layers += [nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, bias=bias)]
        layers += [*([norm(outputs)] if norm else []), act()]
        channels, side = outputs, (side + 2 * (kernel // 2) - kernel) // stride + 1
        if side > 1 and draw(st.integers(0, 3)) == 0:
            layers, side = [*layers, draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))(2)], side // 2
    return layers, channels, side


def _conv(draw):
    channels, side, bias = draw(sizes), draw(st.integers(1, 5)), draw(st.booleans())
    layers, width, out = _conv_layers(draw, channels, side, draw(st.integers(1, 4)), bias)
    head = [nn.Flatten(), nn.Linear(width * out * out, draw(sizes), bias)]
    return [*layers, *(head if draw(st.booleans()) else [])], (channels, side, side)


def _residual(draw):
    """Blocks with an identity or a linear shortcut, the branch sometimes behind a norm whose gains are zero."""
    start, bias = draw(sizes), draw(st.booleans())
    width, layers = draw(sizes), []
    layers.append(nn.Linear(start, width, bias))
    for _ in range(draw(st.integers(1, 4))):
        outputs, inner = draw(st.just(width) | sizes), draw(sizes)
        branch = [nn.Linear(width, inner, bias), nn.ReLU(), nn.Linear(inner, outputs, bias)]
        if draw(st.booleans()):
            branch.append(nn.BatchNorm1d(outputs))
            if draw(st.booleans()):
                nn.init.zeros_(branch[-1].weight)
        same = outputs == width and draw(st.booleans())
        layers.append(Add(nn.Sequential(*branch), nn.Identity() if same else nn.Linear(width, outputs, bias)))
        width = outputs
    return [*layers, *([nn.Linear(width, draw(sizes), bias)] if draw(st.booleans()) else [])], (start,)


def _concat(draw):
    channels, side, bias = draw(sizes), draw(st.integers(1, 4)), draw(st.booleans())
    width, layers = channels, []
    for _ in range(draw(st.integers(1, 3))):
        grown = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
        branches = [nn.Sequential(nn.Conv2d(width, g, 3, padding=1, bias=bias), nn.ReLU()) for g in grown]
        keep = draw(st.booleans())
        layers.append(Cat(*branches, *([nn.Identity()] if keep else [])))
        width = sum(grown) + width * keep
    return [*layers, nn.BatchNorm2d(width), nn.Conv2d(width, draw(sizes), 1, bias=bias)], (channels, side, side)


def _grouped(draw):
    """Grouped and depthwise convolutions, plain and transposed, with mixing 1x1 convolutions between them."""
    groups, bias = draw(st.integers(1, 3)), draw(st.booleans())
    channels, side = groups * draw(st.integers(1, 2)), draw(st.integers(1, 4))
    width, layers = channels, []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from([nn.Conv2d, nn.ConvTranspose2d]))
        outputs = groups * draw(st.integers(1, 2))
        depthwise = draw(st.booleans())
        layers += [
            kind(width, width, 3, padding=1, groups=width, bias=bias) if depthwise else nn.Identity(),
            kind(width, outputs, 3, padding=1, groups=groups, bias=bias),
            nn.ReLU(),
        ]
        width = outputs
    return [*layers, Mean(2, 3), nn.Linear(width, draw(sizes), bias)], (channels, side, side)


def _attention(draw):
    heads, size, bias = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.booleans())
    width, layers = heads * size, []
    for _ in range(draw(st.integers(1, 2))):
        norm = draw(st.sampled_from([nn.Identity, nn.LayerNorm, RMSNorm]))
        attention = draw(st.sampled_from([EinsumAttention, CausalAttention, SelfAttention]))(heads, size, bias)
        layers.append(residual(norm(width), attention) if draw(st.booleans()) else attention)
        if draw(st.booleans()):
            layers.append(residual(norm(width), nn.Linear(width, width, bias), nn.GELU()))
    return [*layers, nn.Linear(width, draw(sizes), bias)], (draw(st.integers(1, 4)), width)


def _gated(draw):
    width, bias = draw(sizes), draw(st.booleans())
    layers = []
    for _ in range(draw(st.integers(1, 2))):
        gate = Gate(width, draw(sizes), bias)
        layers.append(residual(RMSNorm(width), gate) if draw(st.booleans()) else gate)
    return [*layers, nn.Linear(width, draw(sizes), bias)], (width,)


KINDS = {
    "attention": _attention,
    "concat": _concat,
    "conv": _conv,
    "gated": _gated,
    "grouped": _grouped,
    "mlp": _mlp,
    "residual": _residual,
}
