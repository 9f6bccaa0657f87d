"""The zoo itself: every model runs, trains, and comes out the same each time."""

import pytest
import torch

from zoo import ZOO


def call(model, inputs):
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


@pytest.mark.parametrize("name", ZOO)
def test_sample_runs_and_has_gradients(name):
    model, example, data, loss = ZOO[name]()
    call(model.eval(), example)
    total = sum(loss(call(model.train(), inputs), targets) for inputs, targets in data)
    total.backward()
    assert torch.isfinite(total)
    assert sum(p.grad is not None and bool(p.grad.any()) for p in model.parameters()) > 0
    assert sum(p.numel() for p in model.parameters()) < 2000


def test_same_sample_each_time_and_the_callers_generator_untouched():
    state = torch.random.get_rng_state()
    first, second = ZOO["residual"](), ZOO["residual"]()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.example, second.example)
    for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
