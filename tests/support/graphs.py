"""Random small graphs of layers with skips, and the enumeration of every path."""

import itertools

import torch
from hypothesis import strategies as st
from torch import nn

import reference

widths = st.integers(1, 3)


class Graph(nn.Module):
    """Layers in a row; a skip (a, b) adds what layer a reads to what layer b reads, a last b is the output."""

    def __init__(self, sizes, skips, bias):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, bias) for a, b in itertools.pairwise(sizes))
        self.skips = skips

    def forward(self, x):
        read = []
        for index, layer in enumerate([*self.layers, None]):
            for start in (a for a, b in self.skips if b == index):
                x = x + read[start]
            read.append(x)
            x = x if layer is None else torch.relu(layer(x))
        return x


@st.composite
def graphs(draw):
    """A small graph, an example and masks that may or may not leave a path."""
    sizes = draw(st.lists(widths, min_size=2, max_size=5))
    pairs = [(a, b) for a, b in itertools.combinations(range(len(sizes)), 2) if sizes[a] == sizes[b]]
    skips = draw(st.lists(st.sampled_from(pairs), max_size=2, unique=True)) if pairs else []
    # A skip past everything is a path without weights; leave that to a test of its own.
    skips = [skip for skip in skips if skip != (0, len(sizes) - 1)]
    model = Graph(sizes, skips, draw(st.booleans()))
    masks = {
        f"layers.{i}.weight": torch.tensor(draw(st.lists(st.booleans(), min_size=a * b, max_size=a * b))).view(b, a)
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    }
    return model, torch.zeros(1, sizes[0]), masks, skips


def paths(masks, skips):
    """Every path from input to output through kept weights, as the set of its weights."""
    terms = reference.mlp_terms({name: mask.double().numpy() for name, mask in masks.items()}, skips=skips)
    return [path for _, path in terms if all(bool(masks[name].view(-1)[at]) for name, at in path)]
