"""Random networks for compaction: every way in which units can be tied, put together at random."""

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import nn

from blocks import (
    Add,
    Cat,
    CausalAttention,
    EinsumAttention,
    Gate,
    Mean,
    RMSNorm,
    SelfAttention,
    SqueezeExcite,
    residual,
)
from strategies import networks

widths = st.integers(2, 6)
activations = st.sampled_from([nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.PReLU, nn.Hardswish])


class Network(NamedTuple):
    """A model, an example for it, and the parts it was made of."""

    kind: str
    model: nn.Module
    example: torch.Tensor


class Halves(nn.Module):
    """One half of the channels gates the other."""

    def forward(self, x):
        left, right = x.chunk(2, 1)
        return left * right.sigmoid()


class Fork(nn.Module):
    """Channels cut at a fixed place; each part goes its own way."""

    def __init__(self, left, right, place):
        super().__init__()
        self.left, self.right, self.place = left, right, place

    def forward(self, x):
        first, second = x.split([self.place, x.shape[1] - self.place], 1)
        return torch.cat([self.left(first), self.right(second)], 1)


class Shuffle(nn.Module):
    """Channels of two groups dealt out in turns."""

    def forward(self, x):
        return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class Twice(nn.Module):
    """The same module at two places."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(self.module(x).relu())


class Up(nn.Module):
    """Interpolation to twice the size."""

    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="nearest")


class Tokens(nn.Module):
    """Looks tokens up and reads the outputs off, perhaps with the same table."""

    def __init__(self, width, tied, *blocks):
        super().__init__()
        self.table, self.positions = nn.Embedding(7, width), nn.Parameter(torch.randn(5, width))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, 7, bias=not tied)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.blocks(self.table(ids) + self.positions[: ids.shape[1]]))


@st.composite
def tied_networks(draw):
    """A network of one of the kinds of `strategies`, or of images or tokens with the parts of this file."""
    kind = draw(st.sampled_from(["plain", "images", "images", "tokens"]))
    if kind == "plain":
        return Network(*draw(networks()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
        network = _images(draw) if kind == "images" else _tokens(draw)
        if draw(st.booleans()):
            _silence(network.model)
    assume(_runs(network))
    return network


def _runs(network):
    """Not where an instance norm meets images of a single pixel, which torch refuses."""
    try:
        with torch.no_grad():
            copy.deepcopy(network.model).eval()(network.example)
    except ValueError as cause:
        if "spatial element" in str(cause):
            return False
        raise
    return True


def _silence(model):
    """Biases and shifts at zero, as they are before training: then units can be silent."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)


def _norm(draw, channels):
    kinds = [nn.BatchNorm2d, nn.BatchNorm2d, lambda c: nn.GroupNorm(1, c), lambda c: nn.InstanceNorm2d(c, affine=True)]
    kinds += [lambda _: nn.Identity()]
    norm = draw(st.sampled_from(kinds))(channels)
    if isinstance(norm, nn.BatchNorm2d) and draw(st.integers(0, 3)) == 0:
        for part in (norm.weight, norm.bias, norm.running_mean):
            nn.init.normal_(part)
    return norm


def _activation(draw, channels):
    kind = draw(activations)
    return kind(channels) if kind is nn.PReLU and draw(st.booleans()) else kind()


def _block(draw, channels, side):
    """Layers, and the channels and size of images that come out."""
    bias = draw(st.booleans())
    kind = draw(st.sampled_from(sorted(_BLOCKS)))
    layers, channels, side = _BLOCKS[kind](draw, channels, side, bias)
    return kind, layers, channels, side


def _plain(draw, channels, side, bias):
    outputs, kernel = draw(widths), draw(st.sampled_from([1, 3]))
    layers = [nn.Conv2d(channels, outputs, kernel, padding=kernel // 2, bias=bias), _norm(draw, outputs)]
    return [*layers, _activation(draw, outputs)], outputs, side


def _depthwise(draw, channels, side, bias):
    times = draw(st.sampled_from([1, 2]))
    layers = [nn.Conv2d(channels, times * channels, 3, padding=1, groups=channels, bias=bias)]
    return [*layers, _norm(draw, times * channels), nn.ReLU()], times * channels, side


def _grouped(draw, channels, side, bias):
    """A convolution in two groups, plain or transposed, after one that makes the channels even."""
    inner, outputs = 2 * draw(st.integers(1, 3)), 2 * draw(st.integers(1, 3))
    kind = draw(st.sampled_from([nn.Conv2d, nn.ConvTranspose2d]))
    grouped = kind(inner, outputs, 3, padding=1, groups=2, bias=bias)
    return [nn.Conv2d(channels, inner, 1, bias=bias), nn.ReLU(), grouped, _activation(draw, outputs)], outputs, side


def _transposed(draw, channels, side, bias):
    if side > 3:
        return [nn.MaxPool2d(2)], channels, side // 2
    outputs = draw(widths)
    layers = [nn.ConvTranspose2d(channels, outputs, 2, stride=2, bias=bias), _norm(draw, outputs), nn.ReLU()]
    return layers, outputs, 2 * side


def _residual(draw, channels, side, bias):
    inner = draw(widths)
    branch = [nn.Conv2d(channels, inner, 3, padding=1, bias=bias), _norm(draw, inner), _activation(draw, inner)]
    if draw(st.booleans()):
        branch.append(SqueezeExcite(inner, 2))
    same = draw(st.booleans())
    outputs = channels if same else draw(widths)
    branch += [nn.Conv2d(inner, outputs, 1, bias=bias), _norm(draw, outputs)]
    shortcut = nn.Identity() if same else nn.Conv2d(channels, outputs, 1, bias=bias)
    after = [nn.ReLU()] if draw(st.booleans()) else []
    return [Add(nn.Sequential(*branch), shortcut), *after], outputs, side


def _dense(draw, channels, side, bias):
    grown = draw(widths)
    branch = nn.Sequential(_norm(draw, channels), nn.ReLU(), nn.Conv2d(channels, grown, 3, padding=1, bias=bias))
    return [Cat(nn.Identity(), branch)], channels + grown, side


def _halves(draw, channels, side, bias):
    outputs = draw(widths)
    return [nn.Conv2d(channels, 2 * outputs, 1, bias=bias), Halves()], outputs, side


def _fork(draw, channels, side, bias):
    place, left, right = draw(st.integers(1, channels - 1)), draw(widths), draw(widths)
    fork = Fork(nn.Conv2d(place, left, 1, bias=bias), nn.Conv2d(channels - place, right, 1, bias=bias), place)
    return [fork, nn.ReLU()], left + right, side


def _shuffle(draw, channels, side, bias):
    outputs = 2 * draw(st.integers(1, 3))
    return [nn.Conv2d(channels, outputs, 1, bias=bias), nn.ReLU(), Shuffle()], outputs, side


def _twice(draw, channels, side, bias):  # noqa: ARG001 -- one signature for all
    return [Twice(nn.Conv2d(channels, channels, 3, padding=1, bias=bias))], channels, side


def _resize(draw, channels, side, bias):  # noqa: ARG001 -- one signature for all
    if side < 2:
        return [Up()], channels, 2 * side
    return [draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))(2)], channels, side // 2


_BLOCKS = {
    "plain": _plain, "depthwise": _depthwise, "grouped": _grouped, "transposed": _transposed, "residual": _residual,
    "dense": _dense, "halves": _halves, "fork": _fork, "shuffle": _shuffle, "twice": _twice, "resize": _resize,
}  # fmt: skip


def _images(draw):
    start, side = draw(st.integers(2, 3)), draw(st.integers(2, 4))
    channels, size, layers, kinds = start, side, [], []
    for _ in range(draw(st.integers(1, 4))):
        kind, block, channels, size = _block(draw, channels, size)
        layers, kinds = [*layers, *block], [*kinds, kind]
    if draw(st.booleans()):
        layers += [nn.Flatten(), nn.Linear(channels * size * size, 3)]
    elif draw(st.booleans()):
        layers += [Mean(2, 3), nn.Linear(channels, 3)]
    else:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, 3)]
    return Network(" ".join(kinds), nn.Sequential(*layers), torch.randn(draw(st.integers(2, 3)), start, side, side))


def _tokens(draw):
    heads, size, bias = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.booleans())
    width, blocks, kinds = heads * size, [], []
    for _ in range(draw(st.integers(1, 2))):
        norm = draw(st.sampled_from([nn.LayerNorm, RMSNorm, nn.Identity]))
        kind = draw(st.sampled_from(["encoder", "einsum", "causal", "multihead", "gate", "mlp"]))
        if kind == "encoder":
            block = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True)
        elif kind == "gate":
            block = residual(norm(width), Gate(width, 5, bias))
        elif kind == "mlp":
            block = residual(norm(width), nn.Linear(width, 6, bias), draw(activations)(), nn.Linear(6, width, bias))
        else:
            attention = {"einsum": EinsumAttention, "causal": CausalAttention, "multihead": SelfAttention}[kind]
            block = residual(norm(width), attention(heads, size, bias))
        blocks, kinds = [*blocks, block], [*kinds, kind]
    model = Tokens(width, draw(st.booleans()), *blocks)
    return Network("tokens " + " ".join(kinds), model, torch.randint(0, 7, (2, draw(st.integers(1, 4)))))
