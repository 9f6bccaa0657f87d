"""Cutting while pruning: the flow of the cut network is that of the masked one, and so are the scores."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from blocks import CausalAttention, SelfAttention, residual
from checks import untouched
from compact_twins import random_masks, without
from strategies import networks
from synflow.compaction.cut.surgery import cut, paste
from synflow.compaction.cut.while_pruning import cut_down, outline
from synflow.compaction.record.recorder import recording
from synflow.compaction.record.tape import Tape, mark_outputs
from synflow.flow.measure import absolute, measure
from synflow.network.private_copy import open_network


def compare(model, example, masks):
    """Scores of the masked network and of the cut one, laid out in dense shape."""
    network = open_network(model, example)
    masks = {name: masks[name] for name in network.weights}
    dense = measure(network, masks)
    found = cut_down(outline(model, example), masks)
    small = found.apply(model)
    magnitudes = {
        name: cut(magnitude, found.kept.get(name, {})) for name, magnitude in absolute(network, masks).items()
    }
    part = measure(open_network(small, example), magnitudes=magnitudes)
    assert part.exponent - dense.exponent in range(-60, 60)
    scale = 2.0 ** (part.exponent - dense.exponent)
    assert abs(part.value * scale - dense.value) <= 1e-12 * abs(dense.value)
    for name, scores in dense.scores.items():
        kept = found.kept.get(name, {})
        whole = paste(part.scores[name], torch.zeros_like(scores), kept) if kept else part.scores[name]
        torch.testing.assert_close(whole * scale, scores, rtol=1e-11, atol=1e-300, msg=name)
    return found, small


@given(networks(zeros=False, dtype=torch.float64), st.floats(0.1, 0.9), st.sampled_from([0.6, 1.0]), st.integers(0, 99))
def test_the_flow_and_every_score_stay(network, density, units, seed):
    masks = random_masks(network.model, density, units, seed)
    with untouched(network.model):
        compare(network.model, network.example, masks)


def test_units_go_that_training_would_wake():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)).double()
    nn.init.zeros_(model[0].bias)  # a bias that would learn
    masks = {"0.weight": without(model, "0.weight", 0, [1]), "2.weight": torch.ones(2, 4, dtype=torch.bool)}
    found, small = compare(model, torch.ones(1, 3).double(), masks)
    assert found.kept == {"0.weight": {0: [0, 2, 3]}, "0.bias": {0: [0, 2, 3]}, "2.weight": {1: [0, 2, 3]}}
    assert small[0].out_features == 3
    nn.init.ones_(model[0].bias)
    assert cut_down(outline(model, torch.ones(1, 3).double()), masks).kept == {}


def test_gains_that_are_zero_everywhere_count_as_ones_as_they_do_in_the_flow():
    model = nn.Sequential(nn.Conv2d(2, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).double()
    nn.init.zeros_(model[1].weight)
    masks = {"0.weight": without(model, "0.weight", 0, [3]), "2.weight": torch.ones(2, 4, 1, 1, dtype=torch.bool)}
    found, _ = compare(model, torch.ones(1, 2, 3, 3).double(), masks)
    assert found.kept["1.weight"] == {0: [0, 1, 2]}


def test_one_outline_serves_shrinking_masks_and_uncut_weights_are_shared():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    known = outline(model, torch.ones(1, 3))
    masks = {"4.weight": without(model, "4.weight", 1, [0])}
    first = cut_down(known, masks).apply(model)
    assert first[0].weight is model[0].weight
    assert first[2].weight.shape == (3, 4)
    masks["2.weight"] = without(model, "2.weight", 1, [2, 3])
    again = cut_down(known, masks)
    assert again.kept["2.weight"] == {0: [1, 2, 3], 1: [0, 1]}
    assert cut_down(known, masks) == again


def test_nothing_is_cut_where_more_than_a_share_would_be_left():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    masks = {"0.weight": without(model, "0.weight", 0, [1]), "2.weight": torch.ones(4, 4, dtype=torch.bool)}
    known = outline(model, torch.ones(1, 4))
    assert cut_down(known, masks, share=0.74).kept == {}  # 24 of 32 weights would be left
    assert cut_down(known, masks, share=0.75).kept == {"0.weight": {0: [0, 2, 3]}, "2.weight": {1: [0, 2, 3]}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hollow_weights_have_the_shapes_of_the_cut_ones_and_no_values(dtype):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(dtype)
    found = cut_down(outline(model, torch.ones(1, 3, dtype=dtype)), {"2.weight": without(model, "2.weight", 1, [0])})
    with untouched(model):
        plain, hollow = found.apply(model), found.apply(model, {"0.weight", "2.weight"})
    for (name, one), other in zip(plain.named_parameters(), hollow.parameters(), strict=True):
        assert (one.shape, one.dtype, type(one)) == (other.shape, other.dtype, type(other)), name
    assert not hollow[0].weight.any()
    assert torch.equal(hollow[0].bias, plain[0].bias)  # only what was named
    assert hollow[0].out_features == 3


def test_code_that_reshapes_to_fixed_sizes_keeps_its_heads():
    model = nn.Sequential(CausalAttention(2, 2), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in model.named_parameters() if w.dim() > 1}
    masks["0.out.weight"] = without(model, "0.out.weight", 1, [0, 1])
    masks["3.weight"] = without(model, "3.weight", 1, [1])
    found, small = compare(model, torch.ones(1, 3, 4).double(), masks)
    assert found.kept.keys() == {"1.weight", "1.bias", "3.weight"}
    assert small[0].v.out_features == 4
    model = nn.Sequential(CausalAttention(1, 2), nn.Linear(2, 2)).double()
    masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in model.named_parameters() if w.dim() > 1}
    masks["0.out.weight"] = without(model, "0.out.weight", 1, [0])
    compare(model, torch.ones(1, 3, 2).double(), masks)


def test_an_attention_that_is_all_dead_still_runs():
    model = nn.Sequential(residual(SelfAttention(1, 1)), nn.Linear(1, 2)).double()
    masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in model.named_parameters() if w.dim() > 1}
    masks["0.left.0.attention.out_proj.weight"][:] = False
    compare(model, torch.ones(1, 3, 1).double(), masks)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Conv2d(3, 6, (2, 3), dilation=(2, 1), bias=False),
        nn.Conv2d(3, 6, 3, padding=1, groups=3), nn.Conv2d(3, 6, 3, padding="same", dilation=2),
        nn.ConvTranspose2d(3, 6, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(3, 6, (3, 2), dilation=2, groups=3),
    ],
)  # fmt: skip
def test_convolutions_are_traced_without_their_values(layer: nn.Module) -> None:
    """The tape is the same as if they had been computed."""
    tapes = []
    for hollow in (False, True):
        tape = Tape()
        with recording(layer, tape, training=False, hollow=hollow):
            mark_outputs(tape, layer(torch.ones(2, 3, 9, 8)))
        tapes.append(tape)
    assert tapes[0].shapes == tapes[1].shapes
    assert [step.name for step in tapes[0].steps] == [step.name for step in tapes[1].steps]
    assert tapes[0].outputs == tapes[1].outputs
