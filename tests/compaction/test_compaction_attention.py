"""Attention: whole heads go, and value channels where the code leaves their number free."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from blocks import CausalAttention, EinsumAttention
from compact_twins import outputs_equal, random_masks, train_twins, without
from synflow import bake
from synflow.compaction import compact
from synflow.compaction.cut.attention import CompactAttention

X = torch.randn(2, 5, 8)


class Attend(nn.Module):
    def __init__(self, need_weights=True, returns_weights=False, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4, **options)
        self.need_weights, self.returns_weights = need_weights, returns_weights
        self.options = {}

    def forward(self, x):
        result, weights = self.attention(x, x, x, need_weights=self.need_weights, **self.options)
        return (result, weights) if self.returns_weights else result


def heads_cut(model, heads, size=2, name="attention.out_proj.weight"):
    return {name: without(model, name, 1, [head * size + i for head in heads for i in range(size)])}


def check(model, masks, example=X, surprises=False):
    small = compact(model, example, masks)
    assert surprises or not small.compaction.notes
    for training in (False, True):
        assert outputs_equal(model, small, masks, example, training) <= 1e-10
    train_twins(model, small, masks, example, steps=5, optimizer="adamw")
    return small


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bias": False}, {"dropout": 0.5}])
def test_a_head_that_nobody_reads_goes(need_weights, options):
    model = Attend(need_weights, **options)
    small = check(model, heads_cut(model, [1, 3]))
    attention = small.attention
    assert isinstance(attention, CompactAttention)
    assert (attention.num_heads, attention.head_dim, attention.value_dim) == (2, 2, 2)
    assert attention.in_proj_weight.shape == (12, 8)
    assert attention.out_proj.weight.shape == (8, 4)
    assert list(small.state_dict()) == [*model.state_dict(), "attention.out_proj.weight_synflow_mask"]


def test_value_channels_go_as_many_in_every_head():
    model = Attend()
    masks = {"attention.out_proj.weight": without(model, "attention.out_proj.weight", 1, [0, 3, 4, 6, 7])}
    small = check(model, masks)  # head 3 is dead, the others lose one channel each, not the same one
    assert (small.attention.num_heads, small.attention.head_dim, small.attention.value_dim) == (3, 2, 1)
    assert small.compaction.kept["attention.out_proj.weight"] == {1: [1, 2, 5]}


def test_attention_weights_that_are_returned_keep_their_heads():
    model = Attend(returns_weights=True)
    small = check(model, heads_cut(model, [1]))
    assert not isinstance(small.attention, CompactAttention)
    assert any("mean" in stay.reason for stay in small.compaction.stayed)


@pytest.mark.parametrize("need_weights", [True, False])
def test_padding_and_attention_masks_are_kept(need_weights):
    model = Attend(need_weights, batch_first=True)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    model.options = {"key_padding_mask": padding, "attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)}
    assert check(model, heads_cut(model, [2])).attention.num_heads == 3
    model.options = {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1), "is_causal": True}
    assert check(model, heads_cut(model, [2])).attention.num_heads == 3
    model.options["key_padding_mask"] = padding
    assert check(model, heads_cut(model, [2])).attention.num_heads == 3


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_extra_keys_leave_an_attention_as_it_is(option):
    model = Attend(**{option: True})
    assert not CompactAttention.fits(model.attention)
    small = check(model, heads_cut(model, [1]), surprises=True)
    assert type(small.attention) is nn.MultiheadAttention


def test_heads_keep_their_numbers_through_two_cuts():
    first = compact(model := Attend(), X, heads_cut(model, [0, 2]))
    bake(first)
    second = compact(first, X, heads_cut(first, [0]))
    assert (first.attention.kept_heads, second.attention.kept_heads) == ([1, 3], [3])


def test_nothing_is_dropped_in_eval_mode():
    small = compact(Attend(dropout=0.5), X, heads_cut(Attend(), [1])).eval()
    for need_weights in (True, False):
        small.need_weights = need_weights
        torch.testing.assert_close(small(X), small(X), rtol=0, atol=0)


def test_the_causal_hint_masks_what_comes_later():
    attention = CompactAttention.convert(nn.MultiheadAttention(8, 2, batch_first=True))
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for need_weights in (True, False):
        expected, _ = attention(X, X, X, attn_mask=later, need_weights=need_weights)
        for mask in (None, later):
            found, _ = attention(X, X, X, attn_mask=mask, is_causal=True, need_weights=need_weights)
            torch.testing.assert_close(found, expected)


def test_keys_and_values_may_have_other_widths():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys = nn.Linear(8, 6)
            self.attention = nn.MultiheadAttention(8, 4, kdim=6, vdim=6, batch_first=True)

        def forward(self, x):
            keys = self.keys(x)
            return self.attention(x, keys, keys, need_weights=False)[0]

    model = Cross()
    small = check(model, heads_cut(model, [0]))
    assert small.attention.num_heads == 3
    assert small.attention.k_proj_weight.shape == (6, 6)


def test_unbatched_sequences_work():
    model = Attend()
    small = compact(model, X, heads_cut(model, [1]))
    reference = compact(model, X, {"attention.out_proj.weight": torch.ones(8, 8, dtype=torch.bool)})
    with torch.no_grad():
        reference.attention.out_proj._parameters["weight"][:, 2:4] = 0
        torch.testing.assert_close(small(X[0]), reference(X[0]))


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layers_shrink_inside_also_on_their_fast_path(norm_first):
    layer = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    masks = {}
    for block in ("layers.0", "layers.1"):
        masks |= heads_cut(model, [0, 2], name=f"{block}.self_attn.out_proj.weight")
        masks[f"{block}.linear2.weight"] = without(model, f"{block}.linear2.weight", 1, range(10))
    small = check(model, masks)
    assert [block.self_attn.num_heads for block in small.layers] == [2, 2]
    assert [block.linear1.out_features for block in small.layers] == [6, 6]
    with torch.no_grad():
        small.eval()
        grown = small.train(False)(X)
    assert grown.shape == X.shape


@pytest.mark.parametrize("kind", [EinsumAttention, CausalAttention])
def test_heads_of_hand_written_attention(kind):
    model = nn.Sequential(nn.Linear(8, 12), kind(4, 3), nn.Linear(12, 2))
    masks = heads_cut(model, [1, 2], size=3, name="1.out.weight")
    small = check(model, masks, surprises=kind is CausalAttention)
    if kind is EinsumAttention:
        assert (small[1].heads, small[1].size) == (2, 3)
        assert small[1].out.in_features == 6
    else:  # it reshapes to the width of its inputs
        assert small[1].out.in_features == 12
        assert any("fails the check" in stay.reason for stay in small.compaction.stayed)


def test_value_channels_of_hand_written_attention_go_where_their_number_is_free():
    class Free(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = 2
            self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
            return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    model = Free()
    small = check(model, {"out.weight": without(model, "out.weight", 1, [0, 3, 6])})
    assert small.compaction.kept["v.weight"] == {0: [1, 2, 3, 4, 5, 7]}
    assert small.q.out_features == 8


def test_queries_and_keys_keep_the_size_that_scales_their_products():
    model = EinsumAttention(2, 4)
    masks = {"qkv.weight": without(model, "qkv.weight", 0, [0, 8, 4, 12])}  # a channel of queries and keys in each head
    small = check(model, masks)
    assert small.qkv.out_features == 24


def test_learnt_queries_keep_their_size_and_one_head_stays():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.probe = nn.Parameter(torch.randn(1, 1, 8))
            self.attention = nn.MultiheadAttention(8, 4, batch_first=True)
            self.out = nn.Linear(8, 2)

        def forward(self, x):
            pooled, _ = self.attention(self.probe.repeat(len(x), 1, 1), x, x)
            return self.out(pooled[:, 0])

    model = Pool()
    masks = heads_cut(model, [0]) | {"attention.in_proj_weight": without(model, "attention.in_proj_weight", 0, [3, 11])}
    small = check(model, masks)  # a channel of queries and keys goes with its products, which are scaled all the same
    assert (small.attention.num_heads, small.attention.head_dim) == (3, 2)
    nobody = {"out.weight": torch.zeros(2, 8, dtype=torch.bool)}
    small = check(model, nobody | heads_cut(model, [0, 1, 2, 3]))
    assert small.attention.num_heads == 1


def test_random_masks_on_a_decoder():
    model = nn.TransformerDecoderLayer(8, 4, 16, batch_first=True)
    masks = random_masks(model, 0.9, 0.6)
    check(model, masks, (X, torch.randn(2, 3, 8)))


def test_a_mask_of_single_precision_is_no_obstacle():
    model = Attend(batch_first=True)
    model.options = {"attn_mask": torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -1e9)}
    small = compact(model, X, heads_cut(model, [2]))
    assert small.attention.num_heads == 3
    assert "single precision" in small.compaction.notes[0]
