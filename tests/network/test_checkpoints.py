"""Models with checkpointed parts under scores that take gradients of a loss."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

import synflow
from synflow.network.checkpoints import without_checkpoints
from synflow.pruning.scores import traits_of

LOSS_SCORES = [name for name, score in synflow.SCORES.items() if traits_of(score).needs_data]


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x):
        h = self.first(x).relu()
        if self.reentrant is None:
            return self.last(self.middle(h))
        return self.last(checkpoint(self.middle, h, use_reentrant=self.reentrant))


@pytest.mark.parametrize("score", [*LOSS_SCORES])
def test_masks_are_those_of_the_model_without_checkpoints(score):
    found = []
    for reentrant in (None, False, True):
        torch.manual_seed(0)
        model = Checkpointed(reentrant).double()
        data = [(torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,)))]
        found.append(synflow.prune(model, data[0][0], compression=4, score=score, data=data, steps=2))
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in found[0])
    assert "apply" not in vars(CheckpointFunction)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_other_threads_and_after_the_pass_are_checkpoints(reentrant):
    calls = []

    def block(x):
        calls.append(threading.current_thread().name)
        return x * x

    def train():
        x = torch.ones(2, requires_grad=True)
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 2.0))

    with without_checkpoints():
        other = threading.Thread(target=train, name="other")
        other.start()
        other.join()
        assert checkpoint(block, torch.ones(2), use_reentrant=reentrant).sum() == 2
    assert calls.count("other") == 2  # forward, and once more in backward
    assert len(calls) == 3
    train()
    assert len(calls) == 5
