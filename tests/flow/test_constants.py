"""Layers with a large constant weight, made positive a part at a time, against the same made positive whole."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from synflow.flow.measure import measure
from synflow.flow.rules import arithmetic, constants
from synflow.flow.rules.constants import positive_linear
from synflow.network.private_copy import open_network
from synflow.support.memory import peak_memory


class Tied(nn.Module):
    """Tokens, two layers, outputs tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 12)
        self.layers = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 12))

    def forward(self, tokens):
        return F.linear(self.layers(self.embedding(tokens)), self.embedding.weight)


@pytest.fixture(params=[8, 100, 1 << 22])
def part(request, monkeypatch):
    """Parts of less than a row, of some rows, of all rows."""
    monkeypatch.setattr(constants, "LARGE", request.param)


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_products_and_their_gradients_are_those_of_the_absolute_weight(shape):
    torch.manual_seed(0)
    x, weight = torch.randn(shape).double().requires_grad_(), torch.randn(7, 5).double()
    found, expected = positive_linear(x, weight), F.linear(x, weight.abs())
    torch.testing.assert_close(found, expected)
    along = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, along)[0] for y in (found, expected)))


def test_the_absolute_weight_is_not_held():
    x, weight = torch.rand(2, 1 << 10, requires_grad=True), torch.randn(1 << 13, 1 << 10)
    size = weight.numel() * weight.element_size()
    assert peak_memory(lambda: F.linear(x, weight.abs()).sum().backward()) >= size
    assert peak_memory(lambda: positive_linear(x, weight).sum().backward()) <= 0.3 * size


def test_flow_scores_and_pruning_are_the_same_in_parts(monkeypatch):
    torch.manual_seed(0)
    model, tokens = Tied().double(), torch.arange(6)[None]
    whole = measure(open_network(model, tokens)), synflow.prune(model, tokens, compression=8, steps=6)
    calls = []
    monkeypatch.setattr(arithmetic, "LARGE", 1)
    monkeypatch.setattr(constants, "LARGE", 100)
    monkeypatch.setattr(
        arithmetic, "positive_linear", lambda *given: calls.append(1) or constants.positive_linear(*given)
    )
    parts = measure(open_network(model, tokens)), synflow.prune(model, tokens, compression=8, steps=6)
    assert calls
    assert parts[0].log2 == pytest.approx(whole[0].log2, abs=1e-12)
    for name, scores in whole[0].scores.items():
        torch.testing.assert_close(parts[0].scores[name], scores)
        assert torch.equal(parts[1][name], whole[1][name])
