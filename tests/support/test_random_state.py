"""Random numbers from a seed leave the global generators alone, also when several threads ask for them."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import synflow
from synflow.support.random_state import seeded


class Drawing(nn.Module):
    """Draws from every global generator at each call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))

    def forward(self, x):
        factor = 1 + random.random() + float(np.random.rand()) + torch.rand(())  # noqa: NPY002
        return self.layers(x) * factor


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def test_seeded_numbers_are_the_same_and_leave_no_trace():
    before, drawn = states(), []
    for _ in range(2):
        with seeded(3):
            drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    with pytest.raises(KeyError), seeded(3):
        raise KeyError
    assert states() == before


def test_concurrent_calls_leave_every_generator_as_it_was():
    torch.manual_seed(5)
    model, example = Drawing(), torch.ones(1, 6)
    data = [(torch.ones(4, 6), torch.tensor([0, 1, 2, 3]))]

    def work(kind):
        if kind == "compact":
            return synflow.compact(model, example, masks)
        return synflow.prune(model, example, compression=2, score=kind, steps=4, data=data, seed=7)

    masks = synflow.prune(model, example, compression=2)
    alone = work("snip")
    before = states()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, ["synflow", "snip", "grasp", "compact"] * 6))
    assert states() == before
    assert all(torch.equal(found[1][name], alone[name]) for name in alone)
