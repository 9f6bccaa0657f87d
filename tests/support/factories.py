"""Python files that users might give as a model."""

FACTORY = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 5))

def make_conv():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))

def with_example():
    return make_conv(), torch.ones(1, 3, 8, 8)

def broken():
    raise RuntimeError("no such luck")

nothing = lambda: 3
"""
