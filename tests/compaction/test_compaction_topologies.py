"""Units that are tied: through reshapes, groups, splits, concatenation, shared weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from blocks import Add
from compact_twins import check, random_masks, sizes, width, without

X = torch.randn(2, 3)
IMAGE = torch.randn(2, 3, 5, 5)


def test_flattening_takes_all_positions_of_a_channel():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    mask = torch.ones(2, 36, dtype=torch.bool)
    mask[:, 9:17] = False
    assert width(check(model, {"3.weight": mask}, IMAGE)) == 4
    mask[:, 9:18] = False
    assert sizes(check(model, {"3.weight": mask}, IMAGE)) == [(3, 3, 3, 3), (2, 27)]


def test_groups_may_lose_different_channels_but_as_many():
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 1))
    mask = torch.ones(4, 3, 3, 3, dtype=torch.bool)
    mask[:2, [0, 1]] = False  # the first group reads only channel 2
    mask[2:, 1] = False  # the second group reads channels 3 and 5
    small = check(model, {"2.weight": mask}, IMAGE)
    assert sizes(small) == [(4, 3, 1, 1), (4, 2, 3, 3), (2, 4, 1, 1)]
    assert small.compaction.kept["2.weight"] == {1: [[1, 2], [0, 2]]}
    assert any("as many" in stay.reason for stay in small.compaction.stayed)


def test_whole_groups_and_depthwise_channels_go():
    model = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=3), nn.Conv2d(6, 2, 1)
    )
    small = check(model, {"4.weight": without(model, "4.weight", 1, [2, 3])}, IMAGE)
    assert [(m.in_channels, m.out_channels, m.groups) for m in small if isinstance(m, nn.Conv2d)] == [
        (3, 4, 1), (4, 4, 4), (4, 4, 2), (4, 2, 1),
    ]  # fmt: skip


class Recurrent(nn.Module):
    """A recurrent layer and a head; the gates are halves and quarters of one tensor, written in place."""

    def __init__(self, kind):
        super().__init__()
        self.recurrent, self.out = kind(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.recurrent(x)[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_hidden_units_of_recurrent_layers_go(kind):
    model = Recurrent(kind)
    names = ("recurrent.weight_hh_l0", "out.weight")
    small = check(model, {name: without(model, name, 1, [1]) for name in names}, torch.randn(2, 4, 5))
    assert small.recurrent.hidden_size == 5


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second, self.out, self.reentrant = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2), reentrant

    def forward(self, x):
        hidden = self.first(x).relu()
        return self.out(checkpoint(lambda y: self.second(y).relu(), hidden, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_shrink(reentrant):
    model = Checkpointed(reentrant)
    names = ("second.weight", "out.weight")
    small = check(model, {name: without(model, name, 1, [1, 2]) for name in names}, torch.randn(4, 3))
    assert sizes(small) == [(4, 3), (4, 4), (2, 4)]


def test_transposed_convolutions_shrink():
    model = nn.Sequential(
        nn.ConvTranspose2d(3, 4, 2), nn.ReLU(), nn.ConvTranspose2d(4, 4, 2), nn.ReLU(), nn.Conv2d(4, 2, 1)
    )
    masks = {"4.weight": without(model, "4.weight", 1, [0, 3]), "2.weight": without(model, "2.weight", 0, [1, 2])}
    assert sizes(check(model, masks, IMAGE)) == [(3, 2, 2, 2), (2, 2, 2, 2), (2, 2, 1, 1)]


def test_groups_of_a_transposed_convolution_stay_with_the_reason():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.ConvTranspose2d(4, 4, 2, groups=2), nn.Conv2d(4, 2, 1))
    masks = {"2.weight": without(model, "2.weight", 0, [0, 1]), "3.weight": without(model, "3.weight", 1, [0, 1])}
    small = check(model, masks, IMAGE)
    assert sizes(small) == [(4, 3, 1, 1), (4, 2, 2, 2), (2, 4, 1, 1)]
    assert any("transposed" in stay.reason for stay in small.compaction.stayed)


class Shuffle(nn.Module):
    def forward(self, x):
        n, c, h, w = x.shape
        return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def test_shuffled_channels_are_followed():
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), Shuffle(), nn.Conv2d(6, 2, 1))
    small = check(model, {"3.weight": without(model, "3.weight", 1, [2, 3])}, IMAGE)
    assert small.compaction.kept["0.weight"] == {0: [0, 2, 3, 5]}
    # Channels 0 and 5 are in different places of their halves: without them shuffling would mix up the others.
    small = check(model, {"3.weight": without(model, "3.weight", 1, [0, 5])}, IMAGE)
    assert width(small) == 6
    assert [stay.reason for stay in small.compaction.stayed] == ["it is tied to units that stay"]


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.both, self.out = nn.Linear(3, 8), nn.Linear(4, 2)

    def forward(self, x):
        value, gate = self.both(x).chunk(2, -1)
        return self.out(value * gate.sigmoid())


def test_halves_of_a_layer_that_gate_each_other_shrink_together():
    model = Halves()
    small = check(model, {"out.weight": without(model, "out.weight", 1, [1])}, X)
    assert small.compaction.kept["both.weight"] == {0: [0, 2, 3, 4, 6, 7]}


def test_halves_that_go_different_ways_lose_as_many():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.left, self.right = nn.Linear(3, 8), nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            left, right = self.both(x).relu().chunk(2, -1)
            return self.left(left) + self.right(right)

    model = Fork()
    masks = {
        "left.weight": without(model, "left.weight", 1, [1]),
        "right.weight": without(model, "right.weight", 1, [0, 2]),
    }
    small = check(model, masks, X)
    assert small.compaction.kept["both.weight"] == {0: [0, 2, 3, 5, 6, 7]}
    assert [stay.units for stay in small.compaction.stayed] == [1]


def test_concatenated_branches_shrink_each_for_itself():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Linear(3, 2), nn.Linear(3, 3), nn.Linear(8, 2)

        def forward(self, x):
            return self.out(torch.cat([self.a(x), x, self.b(x)], -1).relu())

    model = Net()
    small = check(model, {"out.weight": without(model, "out.weight", 1, [1, 2, 5, 7])}, X)
    assert sizes(small) == [(1, 3), (1, 3), (2, 5)]


def test_a_tied_weight_stays_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.middle = nn.Linear(3, 4, bias=False), nn.Linear(4, 4)

        def forward(self, x):
            return F.linear(self.middle(self.encode(x).relu()).relu(), self.encode.weight.t())

    model = Tied()
    masks = {"encode.weight": without(model, "encode.weight", 0, [2])}
    small = check(model, masks, X)
    assert sizes(small)[0] == (3, 3)


def test_a_linear_shortcut_may_be_empty():
    model = nn.Sequential(Add(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(3, 4, False)), nn.Linear(4, 2))
    masks = random_masks(model, density=0.5) | {"0.right.weight": torch.zeros(4, 3, dtype=torch.bool)}
    check(model, masks, X)


def test_parts_of_a_tensor_may_be_empty():
    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            y = self.first(x).relu()
            return self.out(torch.cat([y[:, :4] * 2, y[:, 4:]], -1))

    model = Partial()
    small = check(model, {"out.weight": without(model, "out.weight", 1, [1])}, X)
    assert width(small, "first") in (3, 4)
