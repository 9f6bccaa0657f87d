"""Paths without magnitudes, against the enumeration of every path of small networks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import synflow
from blocks import Add, Gate
from checks import Function, kept, mlp, nested
from graphs import Graph, graphs, paths
from synflow.engine.pass_hooks import FastPass
from synflow.engine.thresholds import Thresholds
from synflow.flow.paths import connected, fewest_weights, least_for_path, reach, shortest_path
from synflow.network.private_copy import open_network


@given(graphs())
def test_reach_is_the_union_of_all_paths(graph):
    model, example, masks, skips = graph
    network, alive = open_network(model, example), paths(masks, skips)
    found = reach(network, masks)
    assert found.connected == connected(network, masks) == bool(alive)
    for dtype, hooks in ((torch.float32, None), (torch.bfloat16, FastPass(Thresholds()))):
        magnitudes = {name: (torch.rand(mask.shape) + 1e-3).to(dtype) * mask for name, mask in masks.items()}
        assert connected(network, magnitudes, hooks) == bool(alive)
    expected = {key for path in alive for key in path}
    on_path = {(name, int(at)) for name, mask in found.on_path.items() for at in mask.flatten().nonzero()}
    assert on_path == expected


@given(graphs())
def test_the_fewest_weights_are_those_of_the_shortest_path(graph):
    model, example, masks, skips = graph
    network, alive = open_network(model, example), paths(masks, skips)
    assert fewest_weights(network, masks) == min((len(path) for path in alive), default=None)
    if alive:
        path = shortest_path(network, masks)
        assert nested(path, masks)
        assert connected(network, path)
        assert kept(path) == min(len(each) for each in alive)


def test_everything_is_kept_without_masks():
    network = open_network(Graph([2, 3, 2], [], True), torch.zeros(1, 2))
    assert reach(network).connected
    assert all(bool(mask.all()) for mask in reach(network).on_path.values())
    assert fewest_weights(network) == 2


def test_a_path_without_weights():
    network = open_network(Graph([2, 2, 2], [(0, 2)], False), torch.zeros(1, 2))
    nothing = {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    assert connected(network, nothing)
    assert fewest_weights(network, nothing) == fewest_weights(network) == 0
    assert kept(shortest_path(network)) == 0


def test_a_bias_alone_is_no_path():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    nn.init.ones_(model[1].bias)
    network = open_network(model, torch.zeros(3, 2))
    masks = {"0.weight": torch.zeros(2, 2, dtype=torch.bool), "2.weight": torch.ones(1, 2, dtype=torch.bool)}
    assert not connected(network, masks)
    assert not reach(network, masks).on_path["2.weight"].any()


def test_one_of_two_inputs_is_enough():
    model = Function(lambda self, x, y: self.a(x) + self.b(y), a=nn.Linear(2, 1), b=nn.Linear(2, 1))
    network = open_network(model, (torch.zeros(1, 2), torch.zeros(1, 2)))
    masks = {"a.weight": torch.tensor([[True, False]]), "b.weight": torch.tensor([[False, False]])}
    assert reach(network, masks).connected
    assert connected(network, masks)
    masks["a.weight"][:] = False
    assert not reach(network, masks).connected


def test_a_learnt_query_is_no_input():
    """A layer reads a parameter of the model: flow arrives at the output, but none of it comes from the input."""
    model = Function(
        lambda self, x: self.a(x) + self.b(self.query), a=nn.Linear(2, 1), b=nn.Linear(2, 1), query=torch.ones(1, 2)
    )
    network = open_network(model, torch.zeros(1, 2), select=["a.weight", "b.weight"])
    masks = {"a.weight": torch.tensor([[False, False]]), "b.weight": torch.tensor([[True, True]])}
    assert not connected(network, masks)
    masks["a.weight"][0, 1] = True
    assert connected(network, masks)


def test_gates_need_both_factors():
    model = Function(lambda self, x: self.a(x) * torch.sigmoid(self.b(x)), a=nn.Linear(2, 1), b=nn.Linear(2, 1))
    network = open_network(model, torch.zeros(1, 2))
    masks = {"a.weight": torch.tensor([[True, False]]), "b.weight": torch.tensor([[False, True]])}
    assert reach(network, masks).connected
    assert fewest_weights(network) == 2
    masks["b.weight"][:] = False
    assert not connected(network, masks)


POOLED = torch.tensor([[[[1.0, 9.0], [3.0, 4.0]]]])


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(1), lambda x: x.amax((2, 3)), lambda x: x.flatten(2).max(2)[0],
        lambda x: torch.maximum(x[..., 0], x[..., 1]), lambda x: torch.max(x[..., 0], x[..., 1]),
        lambda x: x.max(), nn.MaxPool2d(2, return_indices=True), nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(1, ceil_mode=True),
    ],
)  # fmt: skip
def test_any_entry_may_be_the_largest(pool):
    """Whichever weight is kept, its flow passes the maximum, though the measured flow passes only the largest."""
    layer = nn.Linear(1, 4, bias=False)
    layer.weight.data = POOLED.view(4, 1)
    model = Function(lambda self, x: pool(self.layer(x).view(1, 1, 2, 2)), layer=layer)
    network = open_network(model, torch.zeros(1, 1))
    assert reach(network).on_path["layer.weight"].all()
    for keep in range(4):
        masks = {"layer.weight": torch.arange(4).view(4, 1) == keep}
        assert torch.equal(reach(network, masks).on_path["layer.weight"], masks["layer.weight"])


@pytest.mark.parametrize(
    "options",
    [
        dict(kernel_size=2),
        dict(kernel_size=3, stride=2, padding=1),
        dict(kernel_size=2, dilation=2, stride=1),
        dict(kernel_size=(2, 1), stride=(1, 2)),
        dict(kernel_size=2, ceil_mode=True),
        dict(kernel_size=3, stride=3, padding=1, ceil_mode=True),
    ],
    ids=str,
)
def test_windows_of_a_pool_cover_what_they_should(options):
    """Entry by entry: exactly the inputs in some window reach the output, and each output is reached by its window."""
    weight = nn.Parameter(torch.rand(1, 1, 5, 5) + 0.1)
    for at in range(25):
        masks = {"w": (torch.arange(25) == at).view(1, 1, 5, 5)}
        model = Function(lambda self, x: nn.functional.max_pool2d(self.w * x, **options), w=weight)
        network = open_network(model, torch.ones(1, 1, 5, 5), select=lambda *_: True)
        spike = masks["w"].float()
        expected = bool((nn.functional.max_pool2d(spike, **options) > 0).any())
        assert connected(network, masks) == expected


def test_masked_attention_has_no_path_from_blocked_positions():
    model = Function(
        lambda self, x: nn.functional.scaled_dot_product_attention(x * 1, x * 1, self.v * x, is_causal=True)[:, :1],
        v=torch.rand(1, 3, 2),
    )
    network = open_network(model, torch.zeros(1, 3, 2), select=lambda *_: True)
    assert reach(network).on_path["v"].tolist() == [[[True, True], [False, False], [False, False]]]


def test_depth_does_not_overflow_the_count():
    network = open_network(Graph([2] * 40, [], False), torch.zeros(1, 2))
    assert fewest_weights(network) == 39
    assert kept(shortest_path(network)) == 39


@pytest.mark.parametrize("name", ["norm", "division", "softmax"])
def test_divisors_are_no_paths(name):
    """What is divided by counts; the divisor does not, and a divisor of zero blocks nothing that matters."""
    operations = {
        "norm": lambda x: nn.functional.layer_norm(x, (2,)),
        "division": lambda x: x / x.sum(-1, keepdim=True),
        "softmax": lambda x: x.softmax(-1),
    }
    model = Function(lambda self, x: operations[name](self.layer(x)), layer=nn.Linear(2, 2))
    network = open_network(model, torch.zeros(1, 2))
    assert fewest_weights(network) == 1
    masks = {"layer.weight": torch.tensor([[True, False], [False, False]])}
    assert torch.equal(reach(network, masks).on_path["layer.weight"], masks["layer.weight"])


def test_a_weight_used_twice_counts_once_per_use_but_is_kept_once():
    layer = nn.Linear(2, 2, bias=False)
    network = open_network(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(1, 2))
    assert fewest_weights(network) == 2
    path = shortest_path(network)
    assert connected(network, path)
    assert kept(path) == 1
    assert np.count_nonzero(path["0.weight"].diagonal()) == 1


class Skipping(nn.Module):
    """A short way and a long way are joined; the short one is used a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = nn.Linear(3, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(8, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.short(x)
        return self.last(torch.cat([x, self.long(x)], -1))


def test_a_short_way_that_ends_does_not_hide_a_longer_one():
    network = open_network(Skipping(), torch.ones(1, 3))
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    masks["last.weight"][:, :4] = False
    assert connected(network, masks)
    assert fewest_weights(network) == 2
    assert fewest_weights(network, masks) == 2  # three are needed: too low, but not "no path"
    path = shortest_path(network, masks)
    assert connected(network, path)
    assert {name: int(mask.sum()) for name, mask in path.items()} == dict.fromkeys(masks, 1)
    further = synflow.prune(network.model, torch.ones(1, 3), compression=36 / 3, masks=masks)
    assert connected(network, further)
    masks["last.weight"][:] = False
    assert fewest_weights(network, masks) is None


def test_a_path_may_start_at_an_embedding():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    found = reach(open_network(model, torch.arange(5)[None]))
    assert found.connected
    assert all(bool(mask.all()) for mask in found.on_path.values())


def test_the_least_for_a_path_counts_layers_that_every_term_meets_once():
    """A gate meets what comes before it twice; a branch beside a shortcut need not be met."""
    branch = Add(mlp(4, 4, 4), nn.Identity())
    network = open_network(nn.Sequential(nn.Linear(4, 4), Gate(4, 5), branch, nn.Linear(4, 3)), torch.ones(1, 4))
    assert fewest_weights(network) == 6
    assert least_for_path(network) == 5
