"""Fifty steps of training, masked and compact side by side: the same losses, the same surviving weights."""

import pytest
import torch
from torch import nn

from blocks import Add, SelfAttention, conv_norm, residual
from compact_twins import random_masks, train_twins
from synflow.compaction import compact
from synflow.models.built_in import build
from synflow.pruning.loop import prune


def mlp():
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.GELU(), nn.Linear(20, 3)), (6,)


def vgg():
    layers, width = [], 2
    for outputs in (6, 8, 8):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        width = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 3)), (2, 8, 8)


def resnet():
    shortcut = conv_norm(6, 8, kernel=1, stride=2)
    return nn.Sequential(
        conv_norm(2, 6), nn.ReLU(),
        residual(conv_norm(6, 6), nn.ReLU(), conv_norm(6, 6)), nn.ReLU(inplace=True),
        Add(nn.Sequential(conv_norm(6, 8, stride=2), nn.ReLU(), conv_norm(8, 8)), shortcut), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    ), (2, 6, 6)  # fmt: skip


class Tokens(nn.Module):
    def forward(self, x):
        return x.flatten(2).transpose(1, 2)


def vit():
    blocks = []
    for _ in range(2):
        blocks += [
            residual(nn.LayerNorm(8), SelfAttention(4, 2)),
            residual(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
        ]
    head = [nn.LayerNorm(8), nn.Flatten(), nn.Linear(8 * 4, 3)]
    return nn.Sequential(nn.Conv2d(2, 8, 4, stride=4), Tokens(), *blocks, *head), (2, 8, 8)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("kind", [mlp, vgg, resnet, vit])
def test_fifty_steps(kind, optimizer):
    model, shape = kind()
    masks = random_masks(model, density=0.5, units=0.7, seed=3)
    example = torch.randn(4, *shape)
    small = compact(model, example, masks)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    train_twins(model, small, masks, example, steps=50, optimizer=optimizer, tolerance=1e-7)


def test_what_pruning_leaves_is_really_smaller():
    model, shape = vgg()
    example = torch.randn(4, *shape)
    masks = prune(model, example[:1], compression=20)
    small = compact(model, example, masks)
    assert small.compaction.parameters[1] < 0.4 * small.compaction.parameters[0]
    train_twins(model, small, masks, example, steps=5)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", ["vgg16_bn", "resnet20", "resnet18"])
def test_fifty_steps_of_the_papers_networks(name, optimizer):
    model = build(name, classes=10)
    example = torch.randn(8, 3, 32, 32)
    masks = prune(model, example[:1], compression=100)
    small = compact(model, example, masks)
    train_twins(model, small, masks, example, steps=50, optimizer=optimizer, tolerance=1e-6)
