"""Pruning keeps the same weights whatever the memory format, the precision and the modes of torch around it."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

import synflow
from synflow.engine import EVERYTHING_ON, using

FLOW_SCORES = ("synflow", "balanced", "synflow_l2")


@pytest.fixture(autouse=True)
def _everything():
    with using(EVERYTHING_ON):
        yield


def network(side: int = 12, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    """Convolutions with more than one channel, plain and grouped, and linear layers that are not square."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2, groups=2)]
    head = [nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 4)]
    return nn.Sequential(*layers, *head).to(dtype), torch.ones(1, 3, side, side, dtype=dtype)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize("score", FLOW_SCORES)
def test_the_flow_falls_at_each_step_where_it_has_one_dimension(score: str, engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5)).double()
    for layer in (model[0], model[2], model[4]):
        nn.init.zeros_(layer.bias)
    flows = [
        [step.flow_log2 for step in synflow.prune(model, x, compression=20, steps=12, score=score, engine=engine).steps]
        for x in (torch.ones(20), torch.ones(1, 20))
    ]
    assert flows[0] == pytest.approx(flows[1], abs=1e-12)
    assert all(after < before for before, after in zip(flows[0], flows[0][1:], strict=False))


def strided(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
        elif isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.transpose(0, 1).contiguous().transpose(0, 1)
    return model


def channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("layout", [strided, channels_last])
@pytest.mark.parametrize(("score", "scope"), [*zip(sorted(synflow.SCORES), itertools.cycle(synflow.SCOPES))])
def test_the_order_in_memory_does_not_matter(layout, scope: str, score: str) -> None:
    model = layout(network()[0])
    assert any(not weight.is_contiguous() for weight in synflow.prunable(model).values())
    assert same(in_order(score, scope), pruned(model, score, scope))


def pruned(model: nn.Module, score: str, scope: str) -> dict[str, Tensor]:
    example = network()[1]
    data = [(torch.randn(4, 3, 12, 12, dtype=torch.float64), torch.randint(4, (4,)))]
    options = {"compression": 4, "steps": 3, "scope": scope, "score": score, "data": data}
    return synflow.prune(model, example, guard=False, **options)


@functools.cache
def in_order(score: str, scope: str) -> dict[str, Tensor]:
    """What is kept of the network as it is made; all orders in memory are compared with it."""
    return pruned(network()[0], score, scope)


@pytest.mark.parametrize("score", FLOW_SCORES)
@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_the_masks_of_the_same_numbers_in_single(dtype, side: int, score: str) -> None:
    model, example = network(side, dtype)
    low = synflow.prune(model, example, compression=5, steps=6, score=score)
    high = synflow.prune(copy.deepcopy(model).float(), example.float(), compression=5, steps=6, score=score)
    assert low.about["engine"] == "fast"
    assert "fallbacks" not in low.about
    assert same(low, high)


@pytest.mark.parametrize("score", FLOW_SCORES)
@pytest.mark.parametrize(
    "mode",
    [lambda: torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad, torch.inference_mode],
    ids=["autocast", "no_grad", "inference_mode"],
)
@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize("schedule", ["exponential", "certified"])
def test_modes_of_torch_do_not_matter(mode, score: str, engine: str, schedule: str) -> None:
    expected = in_mode(nullcontext, score, engine, schedule)
    found = in_mode(mode, score, engine, schedule)
    assert "fallbacks" not in found.about
    assert same(found, expected)


@functools.cache
def in_mode(
    mode: Callable[[], AbstractContextManager[object]], score: str, engine: str, schedule: str
) -> synflow.Masks:
    """What is kept of the network, which is made outside of the mode; what is kept without one is asked for often."""
    model, example = network(16, torch.float32)
    steps = 6 if schedule == "exponential" else None
    with mode():
        return synflow.prune(model, example, compression=5, steps=steps, schedule=schedule, score=score, engine=engine)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_inside_the_model_changes_no_mask(dtype):
    class Mixed(nn.Module):
        def __init__(self, on: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.on, self.first, self.last = on, nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=dtype, enabled=self.on):
                hidden = self.first(x).relu()
            return self.last(hidden.float())

    found = [synflow.prune(Mixed(on), torch.ones(1, 6), compression=4) for on in (False, True)]
    assert same(*found)
    assert synflow.certify(Mixed(True), found[0], torch.ones(1, 6)).connected
