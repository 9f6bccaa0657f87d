"""The random networks run, stay small, and come in every kind."""

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from strategies import KINDS, chains, networks


@given(networks())
def test_network_runs(network):
    with torch.no_grad():
        output = network.model(network.example)
    assert torch.isfinite(output).all()
    assert not network.model.training
    assert 1 <= sum(p.numel() for p in network.model.parameters()) < 5000


@given(chains(zeros=False, dtype=torch.float64))
def test_options_are_heeded(network):
    assert network.kind in ("mlp", "conv")
    assert network.example.dtype == torch.float64
    assert all((p != 0).all() for p in network.model.parameters() if p.dim() > 1)


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_each_kind_can_be_asked_for(kind, data):
    assert data.draw(networks(kinds=(kind,))).kind == kind


@pytest.mark.parametrize(
    "wanted",
    [
        lambda model: any((p == 0).any() for p in model.parameters() if p.dim() > 1),
        lambda model: all(p.numel() == 1 for p in model.parameters()),
    ],
    ids=["zero weights", "one unit per layer"],
)
def test_rare_networks_turn_up(wanted):
    once = settings(max_examples=2000, database=None, phases=[Phase.generate])
    assert find(networks(), lambda network: wanted(network.model), settings=once)
