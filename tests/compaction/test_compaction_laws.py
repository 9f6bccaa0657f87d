"""The law of compaction: random networks, random masks, the same outputs and the same training."""

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compact_strategies import tied_networks
from compact_twins import random_masks, train_twins
from synflow.compaction import compact, expand
from synflow.compaction.verify import double, inputs_like, run
from synflow.masks.attach import attached


@st.composite
def masked_networks(draw):
    network = draw(tied_networks())
    density = draw(st.sampled_from([0.1, 0.3, 0.6, 0.9]))
    units = draw(st.sampled_from([0.5, 0.8, 1.0]))
    return network, random_masks(network.model, density, units, draw(st.integers(0, 2**31)))


@settings(max_examples=5 * settings.default.max_examples)
@given(masked_networks(), st.sampled_from(["sgd", "adamw"]))
def test_outputs_and_training_are_those_of_the_masked_network(masked_network, optimizer):
    network, masks = masked_network
    before = {name: tensor.clone() for name, tensor in network.model.state_dict().items()}
    small = compact(network.model, network.example, masks)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.model.state_dict().items())
    assert small.compaction.difference <= 1e-10
    if not any(kind in network.kind for kind in ("attention", "einsum", "causal", "shuffle")):
        # Elsewhere code may reshape to fixed widths, of which proofs about units know nothing.
        assert not any("had to stay" in note for note in small.compaction.notes)
    assert small.compaction.parameters[1] == sum(p.numel() for p in small.parameters())
    assert {name: mask.shape for name, mask in attached(small).items()} == {
        name: dict(small.named_parameters())[name].shape for name in masks
    }
    train_twins(network.model, small, masks, network.example, steps=3, optimizer=optimizer)


@given(masked_networks())
def test_compacting_again_changes_nothing(masked_network):
    network, masks = masked_network
    small = compact(network.model, network.example, masks)
    again = compact(small, network.example)
    pairs = list(zip(again.parameters(), small.parameters(), strict=True))
    assert all(new <= old for a, b in pairs for new, old in zip(a.shape, b.shape, strict=True))
    if not any("one unit at least" in stay.reason for stay in small.compaction.stayed):
        assert all(a.shape == b.shape for a, b in pairs)


@given(masked_networks())
def test_expanding_gives_the_masked_outputs_in_dense_shape(masked_network):
    network, masks = masked_network
    small = compact(network.model, network.example, masks)
    dense = expand(small, network.model)
    assert [p.shape for p in dense.parameters()] == [p.shape for p in network.model.parameters()]
    inputs = inputs_like(network.example, 5)
    with torch.no_grad():
        expected = run(double(copy.deepcopy(small)), inputs, training=False)
        torch.testing.assert_close(run(double(dense), inputs, training=False), expected, rtol=1e-10, atol=1e-10)
