"""What the example does not show: other lengths, branches not taken, other ways to call, torch's fused layers."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compact_twins import sizes, width, without
from synflow import SynflowError
from synflow.compaction import compact
from synflow.compaction.reason import coupling_rules, liveness
from synflow.masks.attach import bake


def masked(model, masks):
    """The model with zeros in place, to compare with in single precision."""
    twin = copy.deepcopy(model).eval()
    weights = dict(twin.named_parameters())
    for name, mask in masks.items():
        weights[name].data.mul_(mask)
    return twin


def same(one, other, *inputs):
    with torch.no_grad():
        torch.testing.assert_close(one.eval()(*inputs), other.eval()(*inputs), rtol=1e-4, atol=1e-5)


class Language(nn.Module):
    """Widths, a window and a limit on the length that are all the same number."""

    def __init__(self, size=12):
        super().__init__()
        self.block_size, self.max_len, self.heads, self.inner = size, size, 4, size
        self.table, self.positions = nn.Embedding(20, 8), nn.Parameter(torch.randn(size, 8))
        self.up, self.out = nn.Linear(8, size), nn.Linear(size, 5)

    def forward(self, ids):
        ids = ids[:, -self.block_size :]
        hidden = self.table(ids) + self.positions[: ids.shape[1]]
        hidden = self.up(hidden).relu().view(*ids.shape, self.inner)
        return self.out(hidden[:, : self.max_len])


def test_only_attributes_that_give_a_dimension_its_size_change():
    model = Language()
    masks = {"out.weight": without(model, "out.weight", 1, range(8))}
    small = compact(model, torch.randint(20, (2, 3)), masks)
    assert width(small, "up") == 4
    assert small.compaction.attributes == {"": {"inner": 4}}
    assert (small.block_size, small.max_len, small.inner) == (12, 12, 4)
    assert not small.compaction.notes
    for length in (1, 3, 7, 12, 15):
        same(small, masked(model, masks), torch.randint(20, (3, length)))


def test_an_attribute_that_is_used_in_another_way_too_keeps_its_units():
    class Both(Language):
        def forward(self, ids):
            hidden = self.up(self.table(ids[:, : self.inner])).relu()
            return self.out(hidden.view(*hidden.shape[:-1], self.inner))

    model = Both()
    masks = {"out.weight": without(model, "out.weight", 1, range(8))}
    for length in (2, 3):  # with two, no length that the check tries is longer than what would be left
        small = compact(model, torch.randint(20, (2, length)), masks)
        assert small.inner == width(small, "up") == 12
        assert small.compaction.stayed
        same(small, masked(model, masks), torch.randint(20, (2, 11)))


def test_numbers_from_a_cache_belong_to_the_module_that_uses_them():
    shapes = {}

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.first, self.out = 4, nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            heads = shapes.setdefault(self.heads, self.heads)  # as the caches of einops do
            parts = self.first(x).relu().view(len(x), heads, 2)
            return x + self.out(parts.flatten(1))

    model = nn.Sequential(Heads(), Heads(), nn.Linear(8, 2))
    masks = {"0.out.weight": without(model, "0.out.weight", 1, [0, 1]),
             "1.out.weight": without(model, "1.out.weight", 1, [0, 1, 2, 3])}  # fmt: skip
    small = compact(model, torch.randn(2, 8), masks)
    assert small.compaction.attributes == {"0": {"heads": 3}, "1": {"heads": 2}}


def test_another_length_that_the_small_network_gets_wrong_is_found():
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x):
            hidden = self.first(x).relu()
            return self.out(hidden) if x.shape[1] < 6 else self.out(hidden + torch.arange(hidden.shape[-1]))

    model = Long()
    masks = {"out.weight": without(model, "out.weight", 1, [1])}
    small = compact(model, torch.randn(2, 4, 3), masks)
    assert width(small, "first") == 6
    assert "for inputs of shape (3, 8, 3)" in small.compaction.notes[0]


def test_the_way_that_torch_takes_without_modes_is_checked():
    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x):
            fast = not torch.overrides.has_torch_function((x,)) and not torch.is_grad_enabled()
            hidden = self.first(x).relu()
            return self.out(hidden.flip(-1).flip(-1) * len(self.first.bias) / 6) if fast else self.out(hidden)

    model = Fused()
    masks = {"out.weight": without(model, "out.weight", 1, [1])}
    small = compact(model, torch.randn(2, 3), masks)
    assert width(small, "first") == 6
    assert "the model fails the check" in small.compaction.notes[0]


DECISIONS = {
    "bool": lambda y: bool(y.mean() > 1e-3),
    "item": lambda y: y.sum().item() > 1e-3,
    "float": lambda y: float(y.sum()) > 1e-3,
    "int": lambda y: int(y.sum() * 1000) > 0,
    "tolist": lambda y: y.flatten().tolist()[0] >= 0,
    "numpy": lambda y: y.numpy().sum() > 1e-3,
    "any": lambda y: (y > 1e-3).any(),
    "nonzero": lambda y: len(y.nonzero()) > 0,
    "contains": lambda y: 77.0 not in y,
    "equal": lambda y: not torch.equal(y.round(), y.new_zeros(y.shape)) or bool(y.max() > 1e-3),
    "allclose": lambda y: not torch.allclose(y, torch.zeros_like(y), atol=1e-3),
    "text": lambda y: float(f"{y.max():.6f}") > 1e-3,
    "rows that are left": lambda y: y[y > 1e-3].shape[0] > 0,
    "length of a selection": lambda y: len(y.masked_select(y > 1e-3) * 2) > 0,
    "number of values": lambda y: y.round(decimals=3).unique().numel() > 1,
    "input": None,
    "parameter": None,
}


class Branch(nn.Module):
    """The second layer runs only where some value says so."""

    def __init__(self, decide):
        super().__init__()
        self.decide, self.a, self.b, self.out = decide, nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.a.bias)
        nn.init.zeros_(self.b.bias)

    def forward(self, x):
        y = self.a(x).relu()
        if DECISIONS[self.decide](y.detach()) if DECISIONS[self.decide] else self.other(x):
            y = self.b(y).relu()
        return self.out(y)

    def other(self, x):
        return x.abs().max() > 1e-3 if self.decide == "input" else self.out.bias.abs().max() > 0


@pytest.mark.parametrize("decide", DECISIONS)
def test_where_code_decides_on_values_the_units_it_sees_stay_and_a_note_says_so(decide):
    model = Branch(decide)
    masks = {
        "a.weight": without(model, "a.weight", 0, [0, 1, 2]),
        "b.weight": without(model, "b.weight", 1, [0, 1, 2]) & without(model, "b.weight", 0, [5, 6, 7]),
        "out.weight": without(model, "out.weight", 1, [5, 6, 7]),
    }
    small = compact(model, torch.randn(4, 6), masks)
    assert sizes(small) == [(8, 6), (8, 8), (3, 8)]
    assert any("decides on values" in note for note in small.compaction.notes)
    same(small, masked(model, masks), torch.randn(4, 6) * 1e-6)


def test_a_decision_keeps_only_what_its_own_module_sees():
    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(2))
            self.register_buffer("limit", torch.tensor(3.0))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
                if x.abs().sum() < 1e-9:
                    break
            return x * (2 if self.limit > 2 else 1)

    model = Early()
    masks = {"blocks.0.2.weight": without(model, "blocks.0.2.weight", 1, [1, 2])}
    assert sizes(compact(model, torch.randn(2, 4), masks))[0] == (4, 4)


def test_a_decision_that_is_handed_on_as_a_flag_keeps_what_the_called_module_sees():
    class Child(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x, small):
            hidden = self.a(x).relu()
            return self.b(hidden) if small else self.c(hidden)

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Child()

        def forward(self, x):
            return self.child(x, bool(x.abs().max() < 10))

    model = Parent()
    masks = {"child.b.weight": without(model, "child.b.weight", 1, [0, 1])}
    small = compact(model, torch.randn(2, 4), masks)
    assert width(small, "child.a") == 6
    assert "child decides on values" in small.compaction.notes[-1]
    same(small, masked(model, masks), 100 * torch.randn(2, 4))  # the other layer


class Doubtful(nn.Module):
    """Looks at its inputs, then calls a layer with a plain flag; `use` says what becomes of what it saw."""

    def __init__(self, use):
        super().__init__()
        self.first, self.out, self.use, self.seen = nn.Linear(4, 6), nn.Linear(6, 2), use, False

    def forward(self, x):
        large = bool((x > 100).any())
        hidden, other = self.first(x).relu(), x[:, :1]
        if self.use == "warn" and large:
            warnings.warn("large inputs", stacklevel=2)
        if self.use == "remember":
            self.seen = large
        result = self.out(hidden), other
        return result[::-1] if self.use == "return" and large else result


@pytest.mark.parametrize("use", ["warn", "remember", "return"])
def test_a_truth_value_that_changes_nothing_when_it_is_turned_round_is_no_decision(use):
    model = Doubtful(use)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = compact(model, torch.randn(3, 4), {"out.weight": without(model, "out.weight", 1, [0, 1])})
    assert width(small, "first") == (4 if use == "warn" else 6)
    assert bool(small.compaction.notes) == (use != "warn")


def test_a_decision_on_what_never_changes_is_none():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 6), nn.Linear(6, 2)
            self.register_buffer("limit", torch.tensor(3.0))

        def forward(self, x):
            y = self.first(x).relu()
            return self.out(y) if self.limit > torch.arange(3).max() else y

    model = Constant()
    small = compact(model, torch.randn(2, 3), {"out.weight": without(model, "out.weight", 1, [1])})
    assert width(small, "first") == 5
    assert not small.compaction.notes


@pytest.mark.parametrize("dropout", [nn.AlphaDropout(0.5), nn.FeatureAlphaDropout(0.5), None])
def test_alpha_dropout_makes_other_numbers_of_zeros(dropout):
    class Drop(nn.Module):
        def forward(self, x):
            return F.alpha_dropout(x, 0.3, self.training)

    model = nn.Sequential(nn.Linear(3, 6, bias=False), nn.SELU(), dropout or Drop(), nn.Linear(6, 2))
    small = compact(model, torch.randn(4, 3), {"0.weight": without(model, "0.weight", 0, [1, 2])})
    assert width(small) == 6
    assert "alpha dropout" in small.compaction.notes[0]
    unread = compact(model, torch.randn(4, 3), {"3.weight": without(model, "3.weight", 1, [1, 2])})
    assert width(unread) == 4


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(8, 4, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, weights=False, mask=None):
        mixed, found = self.attention(x, x, x, need_weights=weights, attn_mask=mask)
        return (self.out(mixed), found) if weights else self.out(mixed)


def test_attention_without_some_heads_takes_masks_per_head_and_refuses_weights():
    model, x = Attending(), torch.randn(2, 5, 8)
    masks = {"attention.out_proj.weight": without(model, "attention.out_proj.weight", 1, [0, 1, 4, 5])}
    small = compact(compact(model, x, masks), x)  # a second time: nothing more goes, and heads keep their names
    assert small.attention.kept_heads == [1, 3]
    same(small, masked(model, masks), x, False, torch.randn(8, 5, 5))
    mixed, weights = small.attention(x, x, x, need_weights=True)
    assert mixed.shape == x.shape
    for read in (lambda: weights.mean(), lambda: weights[0], lambda: x + weights, lambda: weights.shape):
        with pytest.raises(SynflowError, match="example for which it returns the attention weights"):
            read()
    asked = compact(model, (x, True), masks)
    assert asked.attention.num_heads == 4
    same(asked, masked(model, masks), x, True)


@pytest.mark.parametrize("given", [False, True])
def test_a_compact_encoder_takes_padding_masks_as_the_dense_one_does(given):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

        def forward(self, x, padding=None):
            return self.encoder(x, src_key_padding_mask=padding)

    warnings.simplefilter("ignore")  # nested tensors are in beta
    model, x = Encoder(), torch.randn(3, 5, 8)
    padding = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]]).bool()
    names = ("encoder.layers.0.linear2.weight", "encoder.layers.1.self_attn.out_proj.weight")
    masks = {names[0]: without(model, names[0], 1, [0, 5]), names[1]: without(model, names[1], 1, [0, 1, 2, 3])}
    small = compact(model, (x, padding) if given else x, masks)
    assert not small.compaction.notes
    assert small.encoder.layers[1].self_attn.num_heads == 1
    bake(small)
    dense = masked(model, masks)
    for inputs in ((x,), (x, padding)):
        same(small, dense, *inputs)
        torch.testing.assert_close(small(*inputs), dense(*inputs), rtol=1e-4, atol=1e-5)
        with torch.inference_mode():
            torch.testing.assert_close(small(*inputs), dense(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_compaction_does_the_same_without_gradients(mode):
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    nn.init.zeros_(model[0].bias)
    masks = {"0.weight": without(model, "0.weight", 0, [1, 2])}
    with mode():
        small = compact(model, torch.randn(2, 3), masks)
    assert width(small) == 4
    assert small[0].weight.requires_grad
    small(torch.randn(2, 3)).sum().backward()
    with torch.inference_mode():
        made = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    assert width(compact(made, torch.randn(2, 3), {"2.weight": without(made, "2.weight", 1, [1])})) == 5


def test_nan_is_never_equal():
    class Divided(nn.Module):
        def forward(self, x):
            return x / x.norm(dim=-1, keepdim=True)

    model = nn.Sequential(nn.Linear(3, 4, bias=False), Divided(), nn.Linear(4, 2))
    masks = {"0.weight": torch.zeros(4, 3, dtype=torch.bool)}
    with pytest.raises(SynflowError, match="returns nan on the example, first in 1, .* keep a weight there"):
        compact(model, torch.randn(2, 3), masks)


def test_gradients_that_are_not_numbers_keep_the_units():
    class Rooted(nn.Module):
        def forward(self, x):
            return (x.relu() * x).sqrt()  # at zero the slope is infinity times zero

    model = nn.Sequential(nn.Linear(3, 6), Rooted(), nn.Linear(6, 2))
    nn.init.constant_(model[0].bias, -9.0)
    small = compact(model, torch.randn(2, 3), {"2.weight": without(model, "2.weight", 1, [1])})
    assert width(small) == 6
    assert "not finite in the masked model itself" in small.compaction.notes[0]


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_an_empty_row_under_a_weight_norm_is_refused(norm):
    model = nn.Sequential(norm(nn.Linear(3, 6)), nn.ReLU(), nn.Linear(6, 2))
    name = next(n for n, weight in model.named_parameters() if weight.shape == (6, 3))
    with pytest.raises(SynflowError, match="nan on the example"):
        compact(model, torch.randn(2, 3), {name: without(model, name, 0, [1])})


def test_random_inputs_that_give_no_numbers_are_not_compared():
    class Logarithm(nn.Module):
        def forward(self, x):
            return x.log()

    model = nn.Sequential(Logarithm(), nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    small = compact(model, torch.rand(4, 3) + 1, {"3.weight": without(model, "3.weight", 1, [1])})
    assert width(small, "1") == 5
    assert "compared on the example alone" in small.compaction.notes[0]


@pytest.mark.parametrize(
    ("name", "goes"), [("index_add", True), ("scatter_add", True), ("gather", True), ("scatter_reduce", False)]
)
def test_sums_over_edges_of_a_graph_are_followed_or_named(name, goes):
    class Messages(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x, edges):
            nodes = self.a(x).relu()
            sent = nodes[edges[0]]
            places = edges[1][:, None].expand_as(sent)
            ground = torch.zeros_like(nodes)
            if name == "index_add":
                got = ground.index_add(0, edges[1], sent)
            elif name == "gather":
                got = nodes.gather(0, places)
            else:
                got = getattr(ground, name)(0, places, sent, *(["mean"] if name == "scatter_reduce" else []))
            return self.out(self.b(got).relu())

    model, edges = Messages(), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    masks = {"b.weight": without(model, "b.weight", 1, [1, 2])}
    small = compact(model, (torch.randn(4, 3), edges), masks)
    assert width(small, "a") == (4 if goes else 6)
    reasons = [stay.reason for stay in small.compaction.stayed]
    assert reasons == ([] if goes else ["there is no rule for the operation scatter_reduce"])
    same(small, masked(model, masks), torch.randn(5, 3), edges)


def test_a_weight_that_a_list_holds_too_keeps_its_units():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.out = nn.Linear(3, 6), nn.Linear(6, 2)
            self.weights = [self.a.weight]

        def forward(self, x):
            return self.out(F.linear(x, self.weights[0], self.a.bias).relu())

    model = Held()
    masks = {"out.weight": without(model, "out.weight", 1, [1])}
    small = compact(model, torch.randn(2, 3), masks)
    assert width(small, "a") == 6
    assert small.weights[0] is small.a.weight
    same(small, masked(model, masks), torch.randn(2, 3))


def test_an_expanded_weight_is_cut_like_any_other():
    class Expanded(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.out = nn.Parameter(torch.randn(1, 3).expand(6, 3)), nn.Linear(6, 2)

        def forward(self, x):
            return self.out(F.linear(x, self.weight).relu())

    model = Expanded()
    masks = {"out.weight": without(model, "out.weight", 1, [1])}
    small = compact(model, torch.randn(2, 3), masks)
    assert small.weight.shape == (5, 3)
    same(small, masked(model, masks), torch.randn(2, 3))


class Heads(nn.Module):
    """Attention written by hand, which reshapes to sizes that it remembers."""

    def __init__(self):
        super().__init__()
        self.heads, self.size, self.qkv, self.out = 4, 2, nn.Linear(8, 24), nn.Linear(8, 2)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.out(mixed.reshape(*x.shape[:2], -1))


def test_a_number_of_heads_is_told_from_a_length_that_is_the_same():
    model = Heads()
    masks = {"out.weight": without(model, "out.weight", 1, [0, 1])}
    small = compact(model, torch.randn(2, 4, 8), masks)  # as many positions as heads
    assert small.compaction.attributes == {"": {"heads": 3}}
    for length in (2, 3, 4, 9):
        same(small, masked(model, masks), torch.randn(3, length, 8))


def test_a_rule_that_fails_is_an_error_in_strict_mode_and_a_note_elsewhere(monkeypatch):
    def broken(*_):
        raise IndexError("a form that nobody thought of")

    model = nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), nn.Flatten(), nn.ReLU(), nn.Linear(4, 2))
    masks = {"4.weight": torch.tensor([[True, False, False, True]] * 2)}
    monkeypatch.setattr(liveness, "move", broken)
    with pytest.raises(IndexError):
        compact(model, torch.ones(1, 3), masks)
    monkeypatch.setenv("SYNFLOW_STRICT", "0")
    compaction = compact(model, torch.ones(1, 3), masks).compaction
    assert any("no rule for this form of view" in note and "nobody thought of" in note for note in compaction.notes)
    monkeypatch.undo()
    monkeypatch.setattr(coupling_rules, "factor", broken)
    with pytest.raises(IndexError):
        compact(model, torch.ones(1, 3), masks)
    monkeypatch.setenv("SYNFLOW_STRICT", "0")
    (stay,) = compact(model, torch.ones(1, 3), masks).compaction.stayed
    assert stay.reason.startswith("there is no rule for the operation view that can deal with this (IndexError: a form")
