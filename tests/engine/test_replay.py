"""A measurement that is repeated from a recording gives what a new one gives, or says that it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import synflow
from synflow.engine import fast as survivors
from synflow.engine import recording
from synflow.engine import small_convolution as patches
from synflow.engine.recording import recorded
from synflow.engine.replay import Replay
from synflow.flow import dispatch as linearization
from synflow.flow.measure import Measurement, absolute, measure
from synflow.flow.tensor import READING, as_flow
from synflow.network.private_copy import Network, open_network
from zoo import ZOO

NAMES = sorted(ZOO)


def scores(flow: Measurement, magnitudes: dict[str, Tensor]) -> dict[str, Tensor]:
    """|w| dR/d|w|, relative to the flow."""
    found = {}
    for name, sensitivity in flow.sensitivities.items():
        gradient = torch.empty(sensitivity.rows, sensitivity.columns, dtype=torch.float64)
        block = sensitivity.block(sensitivity.factors(), 0, sensitivity.rows, gradient)
        found[name] = block.view(sensitivity.shape) * magnitudes[name] / flow.value
    return found


def record(model: nn.Module, example: object) -> tuple[Network, dict[str, Tensor], Replay | None]:
    network = open_network(model.double(), example)
    magnitudes = absolute(network, None)
    first, replay = recorded(lambda: measure(network, magnitudes=magnitudes, lazy=True), magnitudes)
    again = measure(network, magnitudes=magnitudes, lazy=True)
    assert first.log2 == again.log2
    return network, magnitudes, replay


@pytest.mark.parametrize("name", NAMES)
def test_repeated_as_measured_anew(name: str) -> None:
    case = ZOO[name]()
    network, magnitudes, repeat = record(case.model, case.example)
    if repeat is None:
        pytest.skip("not repeatable: it is measured anew each time")
    for seed in range(2):
        dice = torch.Generator().manual_seed(seed)
        for magnitude in magnitudes.values():
            magnitude.mul_(torch.rand(magnitude.shape, generator=dice, dtype=torch.float64) < 0.9)
        expected = measure(network, magnitudes=magnitudes, lazy=True)
        found = repeat.run()
        assert found is not None
        assert found.log2 == pytest.approx(expected.log2, abs=1e-12)
        assert (found.had_shifts, found.loose, found.notes) == (expected.had_shifts, expected.loose, expected.notes)
        wanted = scores(expected, magnitudes)
        for name, score in scores(found, magnitudes).items():
            torch.testing.assert_close(score, wanted[name], rtol=1e-10, atol=1e-14)


def test_most_networks_can_be_repeated() -> None:
    cases = [ZOO[name]() for name in NAMES]
    repeated = sum(record(case.model, case.example)[2] is not None for case in cases)
    assert repeated >= 0.8 * len(cases)


class Special(nn.Linear):
    """A layer and an operation that has no rule of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.entr(super().forward(x))


def reads(_: Any, x: Any) -> Any:
    """Looks at the numbers."""
    plain = x.as_subclass(Tensor)
    return as_flow(plain * (1.0 if float(plain.detach().sum()) > 3.0 else 2.0), x.exponent)


def draws(_: Any, x: Any) -> Any:
    """Draws other numbers."""
    plain = x.as_subclass(Tensor)
    return as_flow(torch.poisson(plain.detach()) + plain, x.exponent)


@pytest.mark.parametrize("rule", [reads, draws])
def test_rules_that_look_at_numbers_are_not_repeated(rule: Callable[..., Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(linearization._USER_RULES, "special_entr", rule)
        assert record(Special(3, 3), torch.ones(1, 3))[2] is None


def test_a_flow_that_vanishes_or_drifts_is_measured_anew() -> None:
    _, magnitudes, repeat = record(
        nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)), torch.ones(1, 3)
    )
    assert repeat is not None
    assert repeat.run() is not None
    magnitudes["0.weight"].mul_(2.0**-50)
    assert repeat.run() is None
    magnitudes["0.weight"].zero_()
    assert repeat.run() is None


def test_runs_use_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second step on, and after each cut from the one after it."""
    runs: list[float] = []
    plain = Replay.run

    def run(self: Replay, begin: Any = None) -> Measurement | None:
        flow = plain(self, begin)
        runs.append(math.nan if flow is None else flow.log2)
        return flow

    monkeypatch.setattr(Replay, "run", run)
    network = open_network(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.ones(1, 8))
    left = survivors.Survivors(
        network, {n: torch.ones_like(w, dtype=torch.bool) for n, w in network.weights.items()}, 1
    )
    values = [left.measure()[0].log2 for _ in range(3)]
    assert values == [values[0]] * 3
    assert runs == values[1:]


def test_what_cannot_be_watched_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise NotImplementedError("no storage")

    monkeypatch.setattr(recording, "_key", fails)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    masks = synflow.prune(model, torch.ones(1, 8), compression=4, steps=5)
    assert sum(int(mask.sum()) for mask in masks.values()) == 24


@pytest.mark.parametrize("fails", [False, True])
def test_threads_are_as_before(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Light operations run on one thread; whoever asked gets all of them back."""
    _, _, repeat = record(nn.Sequential(nn.Linear(3, 300, bias=False), nn.Linear(300, 3, bias=False)), torch.ones(1, 3))
    assert repeat is not None
    assert not any(call.heavy for call in repeat._calls)
    before, seen = torch.get_num_threads(), []
    plain = repeat._calls[-1].function

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(torch.get_num_threads())
        if fails:
            raise KeyboardInterrupt
        return plain(*args, **kwargs)

    monkeypatch.setattr(repeat._calls[-1], "function", watched)
    try:
        torch.set_num_threads(3)
        with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
            repeat.run()
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(before)


def test_large_products_are_heavy() -> None:
    large, small = torch.empty(2000, 3000, device="meta"), torch.empty(3000, 2, device="meta")
    assert recording._is_heavy("aten::mm", [large, small], [torch.empty(2000, 2, device="meta")])
    assert not recording._is_heavy("aten::mm", [small.t(), small], [torch.empty(2, 2, device="meta")])
    image, kernel = torch.empty(1, 64, 32, 32, device="meta"), torch.empty(64, 64, 3, 3, device="meta")
    assert recording._is_heavy("aten::convolution", [image, kernel], [image])
    assert not recording._is_heavy("aten::convolution", [image[..., :2, :2], kernel], [image[..., :2, :2]])
    assert recording._is_heavy("aten::convolution_backward", [image, image, kernel], [image, None, None])
    assert recording._is_heavy("aten::mul", [large, large], [large])
    assert not recording._is_heavy("aten::mul", [small, small], [small])


def test_lines_of_a_gradient_that_are_the_same() -> None:
    image = torch.tensor([[1.0, 2, 2, 3], [4, 5, 5, 6], [4, 5, 5, 6]]).expand(1, 2, 3, 4).clone()
    lines = patches._lines(image)
    assert lines is not None
    assert [kinds.tolist() for kinds in lines] == [[0, 1, 1], [0, 1, 1, 2]]
    assert torch.equal(patches._spread(patches._first_of(image, lines)[0], lines), image[0])
    kinds = patches._kinds_of_positions(lines, torch.float32)
    seen = torch.rand(5, 12)
    added = (seen @ kinds.t()).view(5, 2, 3)
    torch.testing.assert_close(added[:, 1, 1], seen.view(5, 3, 4)[:, 1:, 1:3].sum((1, 2)))
    assert torch.equal(added.view(5, 6) @ kinds, patches._spread(added, lines).flatten(1))
    image[0, 1, 2, 2] = 7
    assert patches._lines(image) is None


def test_lines_that_are_no_longer_the_same_stop_a_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where equal weights made them the same, others may not: such a recording is given up."""
    monkeypatch.setattr(patches, "LARGE", 0)
    model = nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.Flatten(), nn.Linear(32, 1, bias=False))
    nn.init.ones_(model[0].weight)
    nn.init.ones_(model[2].weight)
    network, magnitudes, repeat = record(model, torch.ones(1, 2, 4, 4))
    assert repeat is not None
    assert repeat.run() is not None
    magnitudes["2.weight"].view(-1)[5] = 0.0
    assert repeat.run() is None
    assert measure(network, magnitudes=magnitudes, lazy=True).value == 62.0
    assert READING.checks is None
