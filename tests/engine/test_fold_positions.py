"""Positions of an image that see the same, computed once: flow and scores stay what they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from checks import Function
from synflow.engine import EVERYTHING_ON, FastEngine, Thresholds, using
from synflow.engine import fold_positions as folding
from synflow.engine.pass_hooks import FastPass
from synflow.engine.scores import FactoredScores
from synflow.flow.measure import absolute, measure
from synflow.flow.tensor import Flow, as_flow
from synflow.network.private_copy import open_network
from synflow.pruning.engine import EngineSettings


def both(model: nn.Module, example: Tensor) -> int:
    """Compare flow and scores with and without folding; how many operations found a folded flow."""
    network = open_network(model.double(), example.double())
    magnitudes = absolute(network, None)
    plain = measure(network, magnitudes=magnitudes)
    hooks = FastPass(Thresholds(), network.constants)
    folded = measure(network, magnitudes=magnitudes, hooks=hooks)
    assert folded.log2 == pytest.approx(plain.log2, abs=1e-12)
    scores = FactoredScores(folded, magnitudes, {}, hooks.gradients, EVERYTHING_ON).whole()
    unit = 2.0 ** (folded.exponent - plain.exponent)
    for name, score in plain.scores.items():
        torch.testing.assert_close(scores[name] * unit, score, rtol=1e-10, atol=1e-12 * plain.value)
    return sum(key[0] == "fold" for key in network.constants if isinstance(key, tuple))


def conv(inputs: int, outputs: int, width: int = 3, **options: object) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, width, **{"padding": width // 2, **options})


class Residual(nn.Module):
    def __init__(self, stride: int = 1, in_place: bool = False) -> None:
        super().__init__()
        self.a, self.b = conv(4, 6, stride=stride), conv(6, 6)
        self.norm = nn.BatchNorm2d(6)
        self.short, self.in_place = conv(4, 6, 1, stride=stride), in_place
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.b(F.relu(self.a(x), inplace=True)))
        if self.in_place:
            y += self.short(x)
            return y
        return y + self.short(x)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.squeeze = conv(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.squeeze(x.mean((2, 3), keepdim=True)))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(4, 2, 1), conv(4, 3, 5), conv(4, 2, 3, dilation=2, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(x, 3, stride=1, padding=1)
        return torch.cat([self.a(x), self.b(pooled), self.c(x)], dim=1)


TAIL = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
MODELS = {
    "chain": lambda: [conv(3, 4), nn.ReLU(), conv(4, 5), nn.MaxPool2d(2), conv(5, 4), *TAIL, nn.Linear(4, 2)],
    "strides": lambda: [conv(3, 4, 7, stride=2), nn.MaxPool2d(3, 2, 1), conv(4, 5, stride=2), *TAIL],
    "odd kernels": lambda: [nn.Conv2d(3, 4, (3, 5), (2, 1), (0, 2)), conv(4, 4, 3, dilation=3, padding=1), *TAIL],
    "grouped": lambda: [conv(3, 4), conv(4, 4, groups=4), nn.SiLU(), conv(4, 6, groups=2), *TAIL],
    "averages": lambda: [conv(3, 4), nn.AvgPool2d(3, 2, 1), conv(4, 4), nn.AvgPool2d(2), *TAIL],
    "padding not counted": lambda: [conv(3, 4), nn.AvgPool2d(3, 2, 1, count_include_pad=False), conv(4, 4), *TAIL],
    "rounded up": lambda: [conv(3, 4), conv(4, 4), nn.MaxPool2d(3, 2, ceil_mode=True), *TAIL],
    "residual": lambda: [conv(3, 4), Residual(), nn.Conv2d(6, 4, 1), Residual(stride=2), *TAIL],
    "in place": lambda: [conv(3, 4), Residual(in_place=True), *TAIL],
    "gate": lambda: [conv(3, 4), Gate(), conv(4, 4), *TAIL],
    "branches": lambda: [conv(3, 4), Branches(), conv(7, 3), *TAIL],
    "same padding": lambda: [conv(3, 4), nn.Conv2d(4, 4, 3, padding="same"), *TAIL],
    "patches": lambda: [nn.Conv2d(3, 4, 4, stride=4), nn.Flatten(2), nn.Linear(24, 3)],
    "no window": lambda: [nn.Flatten(), nn.Linear(3 * 16 * 24, 4)],
}


@pytest.mark.parametrize("name", MODELS)
def test_flow_and_scores_are_the_same(name: str) -> None:
    assert both(nn.Sequential(*MODELS[name]()), torch.zeros(2, 3, 16, 24)) > 0


def test_few_positions_are_computed() -> None:
    """A convolution of a constant image has three kinds of rows and of columns: the borders and the rest."""
    seen = []
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4))
    network = open_network(model, torch.zeros(1, 3, 64, 50))

    def windows(*args: object) -> object:
        found = original(*args)
        seen.append(tuple(found[0].shape[2:]))
        return found

    original, folding._shortened = folding._shortened, windows
    try:
        measure(network, hooks=FastPass(Thresholds(), network.constants))
    finally:
        folding._shortened = original
    assert seen == [(3, 3), (5, 5)]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2),
    st.integers(1, 2), st.integers(0, 99),
)  # fmt: skip
def test_windows_on_the_shorter_line_are_those_of_the_whole_one(
    runs: list[int], width: int, stride: int, padding: int, dilation: int, seed: int
) -> None:
    padding, extent = min(padding, width // 2), dilation * (width - 1) + 1
    if sum(runs) + 2 * padding < extent:
        return
    dice = torch.Generator().manual_seed(seed)
    kinds = torch.cat([torch.randint(3, (1,), generator=dice).expand(run) for run in runs])
    values = torch.cat([torch.rand(3, generator=dice, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])
    lines, pad, which = folding._shorter(kinds, 3, width, stride, padding, dilation)

    def windows(line: Tensor, pad: int) -> Tensor:
        return F.pad(line, (pad, pad)).unfold(0, extent, stride)[:, ::dilation]

    assert torch.equal(windows(values[lines], pad)[which], windows(values[kinds], padding))
    assert len(windows(values[lines], pad)) == int(which[-1]) + 1
    assert len(lines) <= len(kinds) + 2 * padding


def test_a_number_after_the_last_stands_for_a_line_of_zeros() -> None:
    image = torch.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
    rows = folding._picked(image, torch.tensor([0, 2, 1]), torch.tensor([1, 0]))
    assert rows.tolist() == [[[[2.0, 1.0], [0.0, 0.0], [5.0, 4.0]]]]
    columns = folding._picked(image, torch.tensor([1, 1, 0]), torch.tensor([3, 0]))
    assert columns.tolist() == [[[[0.0, 4.0], [0.0, 4.0], [0.0, 1.0]]]]


def test_questions_about_shape_are_answered_for_the_whole_image() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        y = self.conv(x)
        assert (y.shape, y.size(3), y.dim(), y.numel()) == ((1, 4, 9, 11), 11, 4, 396)
        assert torch.zeros_like(y).shape == y.shape
        return y.view(y.size(0), -1) + y.new_zeros(1)

    assert both(Function(forward, conv=conv(3, 4)), torch.zeros(1, 3, 9, 11)) > 0


class Aliased(nn.Module):
    """What is added in place is seen through another name: a folded sum is a new tensor, so the flow would change."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = conv(3, 8), conv(8, 8), nn.Linear(8, 20)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        z = y
        y += self.b(y)
        return self.head((y + z).mean((2, 3)))


def test_a_network_whose_flow_would_change_is_not_folded() -> None:
    for model, folds in ((Aliased(), False), (nn.Sequential(*MODELS["residual"]()), True)):
        network = open_network(model, torch.zeros(1, 3, 12, 12))
        masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
        with using(EVERYTHING_ON):
            engine = FastEngine(network, masks, EngineSettings(steps=9))
        assert ("folding" not in engine.fallbacks) == folds
        if not folds:
            assert engine.fallbacks["folding"].startswith("the flow changes")
        assert engine.measure().flow.log2 == pytest.approx(measure(network).log2, abs=1e-6)


def test_unfolding_puts_every_position_back() -> None:
    data = torch.rand(1, 2, 2, 3)
    rows, columns = torch.tensor([0, 1, 1, 0]), torch.tensor([2, 0, 1, 1, 1])
    flow = as_flow(data.clone(), 3, spread=(rows, columns))
    whole = folding.unfolded(flow)
    assert isinstance(whole, Flow)
    assert (whole.exponent, whole.spread) == (3, None)
    assert torch.equal(whole.as_subclass(Tensor), data[:, :, rows][:, :, :, columns])
    assert folding.outline(flow).shape == whole.shape
