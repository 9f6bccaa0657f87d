"""Gradients left as factors are the gradients that autograd computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
import zoo
from checks import Function
from synflow.engine import factored_layers, products
from synflow.engine.factored_gradient import FactoredGradient, Use
from synflow.engine.fast import FastEngine
from synflow.engine.pass_hooks import FastPass
from synflow.engine.scores import FactoredScores
from synflow.engine.thresholds import EVERYTHING_ON, Thresholds
from synflow.flow.measure import Measurement, absolute, measure
from synflow.network.private_copy import Network, open_network
from synflow.pruning.engine import EngineSettings


def both(model: nn.Module, example: object) -> tuple[dict, dict]:
    network = open_network(model, example)
    magnitudes = absolute(network, None)
    held = measure(network, magnitudes=magnitudes)
    hooks = FastPass(Thresholds())
    factored = measure(network, magnitudes=magnitudes, hooks=hooks)
    assert factored.value == pytest.approx(held.value, rel=1e-12)
    assert factored.exponent == held.exponent
    assert factored.scores == {}
    for name, gradient in hooks.gradients.items():
        flow = 0.0 if gradient.flow is None else float(gradient.flow)
        assert flow == pytest.approx(float(held.scores[name].sum()), rel=1e-9, abs=1e-12)
    return held.scores, FactoredScores(factored, magnitudes, {}, hooks.gradients, EVERYTHING_ON).whole()


@pytest.mark.parametrize("name", sorted(zoo.ZOO))
def test_scores_of_every_network_of_the_zoo(name: str) -> None:
    sample = zoo.ZOO[name]()
    held, factored = both(sample.model.double(), sample.example)
    assert held.keys() == factored.keys()
    for key, scores in held.items():
        torch.testing.assert_close(factored[key], scores, rtol=1e-9, atol=1e-12)


class Wide(nn.Module):
    """Layers with far more weights than positions, in the forms that are left as factors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(24, 64, 3, stride=2, padding=1, dilation=2, bias=False)
        self.linear = nn.Linear(64, 96)
        self.matrix = nn.Parameter(torch.randn(96, 80))
        self.again = nn.Linear(80, 80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu().flatten(2).sum(-1)
        x = self.linear(x).relu() @ self.matrix
        return self.again(self.again(x).relu())  # used twice


def factored_gradients(network: Network) -> tuple[Measurement, dict[str, FactoredGradient]]:
    hooks = FastPass(Thresholds())
    return measure(network, hooks=hooks), hooks.gradients


def test_thin_layers_hold_no_gradient() -> None:
    torch.manual_seed(0)
    model, example = Wide().double(), torch.ones(1, 24, 5, 5, dtype=torch.float64)
    network = open_network(model, example, select="*")
    flow, gradients = factored_gradients(network)
    held = measure(network).scores
    assert {name for name, gradient in gradients.items() if gradient.dense is None} == set(held) - {"linear.bias"}
    assert len(gradients["again.weight"].uses) == 2
    scores = FactoredScores(flow, absolute(network, None), {}, gradients, Thresholds()).whole()
    for name in ("first.weight", "linear.weight", "matrix", "again.weight"):
        torch.testing.assert_close(scores[name], held[name], rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", ["first.weight", "again.weight"])
def test_single_positions(name: str) -> None:
    torch.manual_seed(1)
    network = open_network(Wide().double(), torch.ones(1, 24, 5, 5, dtype=torch.float64), select="*.weight")
    gradient = factored_gradients(network)[1][name]
    whole = torch.empty(gradient.rows, gradient.columns, dtype=torch.float64)
    gradient.block(gradient.factors(), 0, gradient.rows, whole)
    positions = torch.tensor([0, 7, gradient.shape.numel() - 1])
    found = gradient.at(gradient.factors(), positions)
    torch.testing.assert_close(found, whole.view(-1)[positions], rtol=1e-12, atol=0)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("uses", [0, 1, 2])
def test_no_entry_is_larger_than_the_bound(dense: bool, uses: int) -> None:
    gradient = FactoredGradient(torch.Size([3, 4]), dense=torch.full((3, 4), 5.0) if dense else None)
    gradient.uses += [Use(torch.full((3, 7), 2.0), torch.full((7, 4), 3.0))] * uses
    whole = gradient.block(gradient.factors(), 0, 3, torch.empty(3, 4))
    assert gradient.largest(gradient.factors()) == float(whole.max()) == 5.0 * dense + 42.0 * uses


FORMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = {
    "linear": (F.linear, (2, 5), (4, 5), ()),
    "matrix": (torch.matmul, (2, 5), (5, 4), ()),
    "few positions": (F.conv2d, (2, 3, 5, 6), (4, 3, 3, 2), ((2, 1), (1, 2), (2, 3))),
    "many positions": (F.conv2d, (2, 3, 15, 16), (200, 3, 3, 2), ((2, 1), (1, 2), (2, 3))),
    "groups": (F.conv2d, (2, 4, 15, 16), (6, 2, 3, 2), ((2, 1), (1, 2), (2, 3), 2)),
}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_layer_gives_the_gradient_and_the_flow_of_autograd(form: str, written: bool) -> None:
    """Also where the model writes into what a layer sends."""
    torch.manual_seed(0)
    function, size, shape, settings = FORMS[form]
    x = torch.rand(size, dtype=torch.float64)
    weight = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    gradient = FactoredGradient(weight.shape, bounded=True)  # so that no use is too large to stay a product
    with_bias = () if function is torch.matmul else (None,)

    def total(y: torch.Tensor | None) -> torch.Tensor:
        assert y is not None
        y = y.mul_(3.0) if written else y * 3.0
        return (y * torch.linspace(1.0, 2.0, y.numel(), dtype=y.dtype).view(y.shape)).sum()

    total(factored_layers.factored_layer(function, x, weight, gradient, settings, Thresholds())).backward()
    assert weight.grad is None
    (expected,) = torch.autograd.grad(total(function(x, weight, *with_bias, *settings)), weight)
    found = torch.empty(gradient.rows, gradient.columns, dtype=torch.float64)
    gradient.block(gradient.factors(), 0, gradient.rows, found)
    torch.testing.assert_close(found.view(shape), expected, rtol=1e-12, atol=0)
    assert gradient.flow is not None
    assert float(gradient.flow) == pytest.approx(float((weight * expected).sum().detach()), rel=1e-12)
    assert (gradient.dense is None) == (form != "groups")


def test_without_any_use_there_is_no_gradient() -> None:
    nothing = FactoredGradient(torch.Size([2, 3]))
    assert nothing.block([], 0, 2, torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2
    assert nothing.at([], torch.tensor([1, 4])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", sorted(zoo.ZOO))
def test_half_precision_weights_give_the_masks_of_the_same_numbers_in_single_precision(name: str) -> None:
    sample = zoo.ZOO[name]()
    model = sample.model.to(torch.bfloat16)
    low = synflow.prune(model, sample.example, compression=4, steps=5)
    high = synflow.prune(model.float(), sample.example, compression=4, steps=5)
    assert low.about["kept"] == high.about["kept"]
    assert all(torch.equal(low[key], high[key]) for key in high)


def test_layers_read_half_precision_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 4)).to(torch.bfloat16)
    network = open_network(model, torch.ones(1, 3, 4, 4))
    engine = FastEngine(network, full(model), EngineSettings())
    assert {magnitude.dtype for magnitude in engine.magnitudes.values()} == {torch.bfloat16}
    squared = FastEngine(network, full(model), EngineSettings(power=2))
    assert {magnitude.dtype for magnitude in squared.magnitudes.values()} == {torch.float32}


def test_half_precision_weights_have_their_flow_wherever_they_are_read() -> None:
    torch.manual_seed(0)
    model = Function(lambda self, x: self.last(x * self.gain), gain=torch.rand(1, 4), last=nn.Linear(4, 3))
    network = open_network(model.to(torch.bfloat16), torch.ones(1, 4), select="*")
    hooks = FastPass(Thresholds())
    measure(network, magnitudes=absolute(network, None, half=True), hooks=hooks)
    assert set(hooks.gradients) == {"gain", "last.weight"}
    for name, score in measure(network).scores.items():
        flow = hooks.gradients[name].flow
        assert flow is not None
        assert float(flow) == pytest.approx(float(score.sum()), rel=1e-5)


def full(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in synflow.prunable(model).items()}


@pytest.mark.parametrize("part", [1, 30, 1 << 20])
@pytest.mark.parametrize("input_first", [False, True])
def test_half_precision_is_widened_in_parts(part: int, input_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PART", part)
    torch.manual_seed(0)
    weight = torch.rand(7, 5).bfloat16()
    x = torch.rand(3, 7 if input_first else 5, requires_grad=True)
    factors = FactoredGradient(weight.shape)
    found = factored_layers._Linear.apply(x, weight.requires_grad_(), factors, input_first)
    wide = weight.detach().float() if input_first else weight.detach().float().t()
    torch.testing.assert_close(found, x @ wide)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(gradient, torch.ones(3, wide.shape[1]) @ wide.t())
