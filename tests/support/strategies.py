"""Random networks for property tests: chains, residual, concatenating, grouped, attention, gated.

`UNUSUAL` holds further kinds, on which laws about paths do not all hold: they are for comparing engines.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import nn

from blocks import Add, Cat, CausalAttention, EinsumAttention, Gate, Mean, RMSNorm, SelfAttention, residual
from checks import Function

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
    """A network of one of the kinds (all of KINDS by default, those of UNUSUAL by name).

    Widths are 1 to 6 and depths 1 to 6, with or without biases and norms. Norms sometimes look trained: random gains,
    shifts and statistics. With `zeros`, some weights are exactly zero now and then, so that a network may carry no
    flow at all. The example is a batch of two or three, on which batch norms can also be trained.
    """
    kind = draw(st.sampled_from(sorted(kinds or KINDS)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
        layers, shape = {**KINDS, **UNUSUAL}[kind](draw)
        model = nn.Sequential(*layers)
        if draw(st.booleans()):
            _look_trained(model)
        if zeros and draw(st.integers(0, 3)) == 0:
            _set_some_weights_to_zero(model, draw(st.sampled_from([0.1, 0.5])))
        batch = [] if kind == "unbatched" else [draw(st.integers(2, 3))]
        example = torch.randn(*batch, *shape)
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


def _unbatched(draw):
    """Linear layers on a single vector: the flow has one dimension."""
    widths = draw(st.lists(st.integers(1, 8), min_size=2, max_size=5))
    bias, act, norm = draw(st.booleans()), draw(activations), draw(st.booleans())
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias), *([nn.LayerNorm(outputs)] if norm else []), act()]
    return layers, widths[:1]


def _in_place(draw):
    """Operations that change the shape of a tensor in place."""
    width, inner, bias = draw(sizes), draw(sizes), draw(st.booleans())

    def unsqueezed(self, x):
        h = self.first(x).relu()
        h.unsqueeze_(1)
        return self.second(h).squeeze_(1)

    def transposed(self, x):
        h = self.first(x).t_()
        return self.second(h.relu().t())

    def swapped(self, x):
        h = self.first(x).unsqueeze(0)
        h.transpose_(0, 1)
        return self.second(torch.relu_(h)).squeeze_()

    forward = draw(st.sampled_from([unsqueezed, transposed, swapped]))
    parts = {"first": nn.Linear(width, inner, bias), "second": nn.Linear(inner, draw(sizes), bias)}
    more = [nn.Linear(parts["second"].out_features, draw(sizes), bias)] if forward is not swapped else []
    return [Function(forward, **parts), *more], (width,)


def _per_sample(draw):
    """The samples of a batch pass the layers one by one."""
    layers, shape = draw(st.sampled_from([_unbatched, _conv_chain]))(draw)

    def forward(self, x):
        return torch.stack([self.layers(x[i]) for i in range(len(x))])

    return [Function(forward, layers=nn.Sequential(*layers)), *([nn.Flatten()] if len(shape) > 1 else [])], shape


def _conv_chain(draw):
    channels, side, bias = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.booleans())
    hidden = draw(sizes)
    layers = [nn.Conv2d(channels, hidden, 3, padding=1, bias=bias), nn.ReLU(), nn.Conv2d(hidden, draw(sizes), 1)]
    return layers, (channels, side, side)


def _transposed(draw):
    """A product of a sum over the batch with a transposed weight, written out."""
    width, inner, bias = draw(sizes), draw(sizes), draw(st.booleans())

    def forward(self, x):
        return torch.matmul(self.first(x).relu().sum(0), self.second.weight.t())

    second = nn.Linear(inner, draw(sizes), False)
    more = [nn.Linear(second.out_features, draw(sizes), bias)] if draw(st.booleans()) else []
    return [Function(forward, first=nn.Linear(width, inner, bias), second=second), *more], (width,)


def _image(draw):
    """Images with room between their borders, where positions that see the same are computed once."""
    channels, side, bias = draw(st.integers(1, 3)), draw(st.integers(8, 20)), draw(st.booleans())
    layers, width, out = _conv_layers(draw, channels, side, draw(st.integers(1, 3)), bias)
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, draw(sizes), bias)]
    flat = [nn.Flatten(), nn.Linear(width * out * out, draw(st.integers(1, 2)), bias)]
    return [*layers, *(flat if draw(st.booleans()) and out <= 10 else pooled)], (channels, side, side)


def _tied(draw):
    """Layers that are used twice, and a weight that is used both ways round."""
    width, inner, bias = draw(sizes), draw(sizes), draw(st.booleans())
    again = nn.Linear(inner, inner, bias)

    def back(self, x):
        return nn.functional.linear(torch.relu(self.first(x)), self.first.weight.t())

    layers = [nn.Linear(width, inner, bias), again, nn.ReLU(), again]
    if draw(st.booleans()):
        layers.append(Function(back, first=nn.Linear(inner, draw(sizes), bias)))
    return [*layers, nn.Linear(inner, draw(sizes), bias)], (width,)


def _recurrent(draw):
    """An LSTM or a GRU and a head on its last state."""
    kind, width, inner = draw(st.sampled_from([nn.LSTM, nn.GRU])), draw(st.integers(1, 4)), draw(st.integers(1, 4))

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])

    cells = kind(width, inner, draw(st.integers(1, 2)), bias=draw(st.booleans()), batch_first=True)
    return [Function(forward, cells=cells, head=nn.Linear(inner, draw(sizes)))], (draw(st.integers(1, 3)), width)


def _strided(draw):
    """Weights that do not lie in memory in the order of their indices."""
    layers, shape = draw(st.sampled_from([_conv, _grouped, _mlp]))(draw)
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        elif isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.t().contiguous().t()
    return layers, shape


UNUSUAL = {
    "image": _image,
    "in_place": _in_place,
    "per_sample": _per_sample,
    "recurrent": _recurrent,
    "strided": _strided,
    "tied": _tied,
    "transposed": _transposed,
    "unbatched": _unbatched,
}
