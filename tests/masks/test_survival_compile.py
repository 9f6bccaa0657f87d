"""Masks hold under torch.compile, in training and evaluation, in one graph."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from masking import assert_masks_hold, random_masks, seen
from synflow.masks.attach import attach, attached, bake

IMAGES = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(2))
CLASSES = torch.tensor([0, 1, 2, 0])


def network():
    """No LSTM: dynamo leaves those to eager mode, masked or not."""
    attention = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(2), nn.Linear(16, 8), attention,
        nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


def run(model, network, optimizer, steps=3):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(IMAGES), CLASSES)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    network.eval()
    with torch.no_grad():
        losses.append(model(IMAGES))
    network.train()
    return losses


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_training_and_evaluation(backend):
    torch._dynamo.reset()
    plain = network()
    masks = random_masks(plain)
    attach(plain, masks)
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin, fullgraph=True, backend=backend)
    expected = run(plain, plain, torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=0.1))
    losses = run(compiled, twin, torch.optim.SGD(compiled.parameters(), 0.1, momentum=0.9, weight_decay=0.1))
    for left, right in zip(losses, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)
    assert_masks_hold(twin, masks)
    assert {name: mask.sum() for name, mask in attached(compiled).items()} == {n: m.sum() for n, m in masks.items()}
    for name, weight in seen(plain).items():
        torch.testing.assert_close(seen(twin)[name], weight, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        output = twin.eval()(IMAGES)
        bake(compiled)
        torch.testing.assert_close(compiled(IMAGES), output, atol=1e-4, rtol=1e-4)
    assert attached(twin) == {}


def test_inductor_in_small():
    torch._dynamo.reset()
    layer = attach(nn.Linear(4, 4), {"weight": torch.eye(4, dtype=torch.bool)})
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(2, 4)
    compiled(x).square().sum().backward()
    gradient = layer._parameters["weight"].grad.clone()
    layer.zero_grad()
    layer(x).square().sum().backward()
    torch.testing.assert_close(gradient, layer._parameters["weight"].grad)
    assert not gradient[~torch.eye(4, dtype=torch.bool)].any()


def test_masks_may_come_after_compilation():
    torch._dynamo.reset()
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="aot_eager")
    compiled(torch.ones(1, 4))
    attach(compiled, {"weight": torch.eye(4, dtype=torch.bool)})
    assert torch.equal(compiled(torch.ones(1, 4)), layer(torch.ones(1, 4)))
    assert_masks_hold(layer, {"weight": torch.eye(4, dtype=torch.bool)})
    attach(compiled, {"weight": torch.zeros(4, 4, dtype=torch.bool)})
    assert torch.equal(compiled(torch.ones(1, 4))[0], layer.bias)
