"""Traps where a reader has no weights of its own: plain sums, and statistics that several inputs share."""

import torch
from torch import nn

from compact_twins import check, width, without

X = torch.randn(4, 3)


class Total(nn.Module):
    """The sum of hidden units, without weights of its own."""

    def __init__(self, dims):
        super().__init__()
        self.layer = nn.Linear(3, 4, bias=False)
        self.dims = dims

    def forward(self, x):
        return torch.relu(self.layer(x)).sum(self.dims)


def test_a_plain_sum_reads_what_it_sums_up():
    for dims in (1, (0, 1), -1):
        model = Total(dims)
        assert width(check(model, {"layer.weight": torch.ones(4, 3, dtype=torch.bool)}, X), "layer") == 4
        assert width(check(model, {"layer.weight": without(model, "layer.weight", 0, [1, 2])}, X), "layer") == 2


class Shared(nn.Module):
    """One batch norm for the outputs of two layers, so that the running mean of one is subtracted from the other."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.one, self.other = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.one(torch.relu(self.norm(self.left(x)))), self.other(torch.relu(self.norm(self.right(x))))


def test_a_running_mean_that_another_input_moves_speaks_for_a_silent_one():
    model = Shared()
    silent = {"right.weight": without(model, "right.weight", 0, [1])}
    unread = {"one.weight": without(model, "one.weight", 1, [1])}
    assert width(check(model, silent | unread, X), "right") == 4
    both_silent = silent | {"left.weight": without(model, "left.weight", 0, [1])}
    assert width(check(model, both_silent, X), "right") == 3
