"""Traps at the joints: plain sums, shared statistics, concatenation, tied weights, products of activations."""

import torch
from torch import nn

from compact_twins import check, width, without
from synflow.compaction import load_compact, save_compact
from synflow.masks.attach import bake

X = torch.randn(4, 3)


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


class Branches(nn.Module):
    """Two layers side by side, read by one."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(torch.cat([self.left(x), self.right(x)], 1))


def test_gradients_through_a_concatenation_reach_the_branch_they_belong_to():
    model = Branches()
    nn.init.zeros_(model.right.bias)
    masks = {"right.weight": without(model, "right.weight", 0, [1]), "out.weight": without(model, "out.weight", 1, [1])}
    small = check(model, masks, X)  # the bias of right's unit 1 learns, though left's unit 1 is not read
    assert (width(small, "left"), width(small, "right")) == (3, 4)


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.again.weight = self.first.weight

    def forward(self, x):
        return self.out(torch.relu(self.first(x))) + self.out(torch.relu(self.again(x)))


def test_a_tied_weight_is_cut_once_and_stays_tied():
    model = Tied()
    small = check(model, {"out.weight": without(model, "out.weight", 1, [0, 2])}, torch.randn(4, 4))
    assert small.first.weight.shape == (2, 4)
    assert small.again.weight is small.first.weight
    bake(small)
    assert len(list(small.parameters())) == 5


class Attention(nn.Module):
    """Attention whose scale is that of the size it finds."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def test_channels_of_queries_and_keys_stay_since_their_number_is_the_scale():
    model = Attention()
    dead = [1, 5]  # the same in both heads
    masks = {f"{name}.weight": without(model, f"{name}.weight", 0, dead) for name in "qk"}
    small = check(model, masks, torch.randn(2, 5, 8))
    assert (width(small, "q"), width(small, "k")) == (8, 8)
    assert any("scaled by its size" in stay.reason for stay in small.compaction.stayed)


class Parted(nn.Module):
    """A gate and two unequal parts, as of MambaOut, cut by a list that the module remembers."""

    def __init__(self, remembers=True):
        super().__init__()
        self.layer, self.out = nn.Linear(3, 16), nn.Linear(8, 2)
        self.conv = nn.Conv1d(3, 3, 3, padding=1, groups=3)
        self.parts = (8, 5, 3) if remembers else None

    def forward(self, x):
        gate, plain, mixed = torch.split(self.layer(x), self.parts or (8, 5, 3), dim=-1)
        mixed = self.conv(mixed.transpose(1, 2)).transpose(1, 2)
        return self.out(torch.relu(gate) * torch.cat((plain, mixed), -1))


def test_unequal_parts_shrink_where_their_list_is_remembered(tmp_path):
    x = torch.randn(2, 5, 3)
    for dead, parts in (([1, 6], (6, 4, 2)), ([0, 1, 2, 3, 4], (3, 0, 3)), ([5, 7], (6, 5, 1))):
        model = Parted()
        masks = {"out.weight": without(model, "out.weight", 1, dead)}
        small = check(model, masks, x)
        assert small.parts == parts
        assert width(small, "layer") == 2 * parts[0]
        assert small.conv.groups == parts[2]
        save_compact(small, tmp_path / str(parts))
        assert torch.equal(load_compact(Parted(), tmp_path / str(parts))(x), small(x))
    fixed = Parted(remembers=False)
    small = check(fixed, {"out.weight": without(fixed, "out.weight", 1, [1, 6])}, x)
    assert width(small, "layer") == 16
    assert any("cut at a fixed place" in stay.reason for stay in small.compaction.stayed)


class Windows(nn.Module):
    """As many windows times heads as a head is wide, and a head's width by a name that ends in head, as of MaxViT."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.dim_head = 2, 8
        self.qkv, self.proj = nn.Linear(4, 48), nn.Linear(16, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).view(len(x), -1, self.num_heads, 3 * self.dim_head).transpose(1, 2).chunk(3, dim=3)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(*x.shape[:-1], -1))


def test_the_width_of_a_head_is_not_taken_for_their_number():
    model = Windows()
    small = check(model, {"proj.weight": without(model, "proj.weight", 1, range(8))}, torch.randn(4, 3, 4))
    assert (small.num_heads, small.dim_head) == (1, 8)
    assert width(small, "qkv") == 24
    assert not small.compaction.notes


class Bias(nn.Module):
    """Asked by another method than its forward, as the position tables of timm are."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(2, 8))
        self.bias_shape, self.width = (1, 2, 8), 8

    def shaped(self):
        return self.bias.view(self.bias_shape).view(-1, self.width)[:1]


class Shaped(nn.Module):
    """Reshapes by shapes that are remembered as a whole, not by sizes one by one."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(6, 8, bias=False), nn.Linear(8, 2)
        self.part = Bias()
        self.gain = nn.Parameter(torch.randn(8))
        self.gain_shape = (1, 1, 8)
        self.window = (3, 2)  # a shape that is none of what was cut

    def forward(self, x):
        x = x.reshape(-1, *self.window).flatten(1)
        return self.out(torch.relu(self.first(x) + self.part.shaped()) * self.gain.view(self.gain_shape)[0])


def test_a_shape_that_a_module_remembers_shrinks_with_what_it_shapes(tmp_path):
    model, example = Shaped(), torch.randn(4, 6)
    small = check(model, {"out.weight": without(model, "out.weight", 1, [1, 2, 5])}, example)
    assert (small.part.bias_shape, small.part.width) == ((1, 2, 5), 5)
    assert (small.gain_shape, small.window) == ((1, 1, 5), (3, 2))
    save_compact(small, tmp_path / "small")
    again = load_compact(Shaped(), tmp_path / "small")
    assert again.part.bias_shape == (1, 2, 5)
    assert torch.equal(again(example), small(example))


class Doubled(nn.Module):
    """The factor of each pair of channels multiplies its channels too, so that a channel and its pair are one unit."""

    def __init__(self):
        super().__init__()
        self.into, self.scale = nn.Linear(3, 4, bias=False), nn.Parameter(torch.rand(2))
        self.inner, self.last = nn.Linear(2, 3, bias=False), nn.Linear(6, 2, bias=False)
        self.out = nn.Linear(4, 2, bias=False)

    def forward(self, x):
        h = self.into(x)
        pairs = self.inner(h.reshape(-1, 2, 2) * self.scale[:, None])
        return self.out(h * torch.cat([self.scale, self.scale])), self.last(pairs.flatten(1))


def test_a_channel_that_is_one_unit_with_its_own_pair_is_reported_once():
    model = Doubled()
    stayed = check(model, {"inner.weight": without(model, "inner.weight", 1, [0])}, X).compaction.stayed
    assert {stay.reason for stay in stayed} == {"it is tied to units that stay"}
