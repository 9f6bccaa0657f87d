"""Levelled weights: branches that carry next to nothing keep what reads them."""

import torch
import torch.nn.functional as F
from torch import nn

from checks import Function
from synflow.flow.measure import measure
from synflow.flow.paths import reach
from synflow.masks.checks import full_masks
from synflow.network.private_copy import open_network
from synflow.pruning import skeleton as skeletons
from synflow.pruning.levels import levelled
from synflow.pruning.skeleton import find_skeleton


class DenseBlocks(nn.Module):
    """Blocks that append to what they read, next to nothing at first: whoever reads it, reads it least."""

    def __init__(self, blocks=4, width=12, growth=6, faint=2.0**-20):
        super().__init__()
        self.first = nn.Linear(5, width)
        sizes = [width + growth * place for place in range(blocks)]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, growth)) for size in sizes
        )
        self.last = nn.Linear(sizes[-1] + growth, 3)
        for block in self.blocks:
            block[2].weight.data *= faint

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = torch.cat([x, block(x)], dim=1)
        return self.last(x)


def test_levelled_weights_lead_to_a_skeleton_where_scores_alone_do_not(monkeypatch):
    torch.manual_seed(0)
    network = open_network(DenseBlocks(), torch.ones(1, 5))
    everything = full_masks(None, network.weights)
    monkeypatch.setattr(skeletons, "_path_through", None)  # paths need not be joined
    found = find_skeleton(network, everything, 60)
    assert found.size <= 60
    assert reach(network, found.masks()).live_layers == frozenset(network.weights)
    scores_alone = skeletons.Skeleton(network, everything)
    assert not scores_alone.thin_out(60, rough=True, failures=skeletons.PATIENCE)


def test_levelled_weights_differ_by_powers_of_two_and_give_faint_branches_their_share():
    torch.manual_seed(0)
    network = open_network(DenseBlocks().double(), torch.ones(1, 5).double())
    everything = full_masks(None, network.weights)
    level = levelled(network, everything, skeletons.FROM_INPUTS)
    for name, weight in network.weights.items():
        factors = (level.weights[name] / weight).unique()
        assert len(factors) == 1
        assert float(factors.log2()) == round(float(factors.log2()))

    def least(what):
        flow = measure(what, everything, options=skeletons.FROM_INPUTS)
        return min(float(score.sum()) for score in flow.scores.values()) / flow.value

    assert least(network) < 2.0**-15
    assert least(level) > 2.0**-4


def test_a_level_network_stays_as_it_is():
    torch.manual_seed(0)
    network = open_network(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), torch.ones(1, 4))
    assert levelled(network, full_masks(None, network.weights), skeletons.FROM_INPUTS) is network


def test_scales_before_a_norm_bring_nothing_and_are_not_kept():
    def forward(self, x):
        return self.last(x + F.layer_norm(self.inner(x), (4,)) * 2.0**-20)

    torch.manual_seed(0)
    model = Function(forward, inner=nn.Linear(4, 4), last=nn.Linear(4, 3))
    network = open_network(model, torch.ones(1, 4))
    assert levelled(network, full_masks(None, network.weights), skeletons.FROM_INPUTS) is network
