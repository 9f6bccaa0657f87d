"""A measurement that is repeated from a recording gives what a new one gives, or says that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

import synflow
from synflow.engine import FastEngine, Thresholds, measuring, recording
from synflow.engine.fallbacks import CannotServeError, FallbackError
from synflow.engine.pass_hooks import FastPass
from synflow.engine.recording import recorded
from synflow.engine.replay import Gradients, Replay
from synflow.engine.scores import FactoredScores
from synflow.flow import dispatch
from synflow.flow.measure import Measurement, absolute, measure
from synflow.flow.passes import WITHOUT_SHIFTS
from synflow.flow.tensor import as_flow
from synflow.network.private_copy import Network, open_network
from synflow.pruning.engine import EngineSettings
from zoo import ZOO

NAMES = sorted(ZOO)


Measured = tuple[Measurement, Gradients]


def measured(network: Network, magnitudes: dict[str, Tensor]) -> Measured:
    hooks = FastPass(Thresholds())
    flow = measure(network, magnitudes=magnitudes, hooks=hooks)
    return flow, hooks.gradients


def scores(found: Measured, magnitudes: dict[str, Tensor]) -> dict[str, Tensor]:
    """|w| dR/d|w|, relative to the flow."""
    whole = FactoredScores(found[0], magnitudes, {}, found[1], Thresholds()).whole()
    return {name: score / found[0].value for name, score in whole.items()}


def record(model: nn.Module, example: object) -> tuple[Network, dict[str, Tensor], Replay | CannotServeError]:
    network = open_network(model.double(), example)
    magnitudes = absolute(network, None)
    first, _, replay = recorded(lambda: measured(network, magnitudes), magnitudes)
    assert first.log2 == measured(network, magnitudes)[0].log2
    return network, magnitudes, replay


def replay_of(model: nn.Module, example: object) -> tuple[Network, dict[str, Tensor], Replay]:
    network, magnitudes, replay = record(model, example)
    assert isinstance(replay, Replay), replay
    return network, magnitudes, replay


@pytest.mark.parametrize("name", NAMES)
def test_repeated_as_measured_anew(name: str) -> None:
    case = ZOO[name]()
    network, magnitudes, repeat = record(case.model, case.example)
    if not isinstance(repeat, Replay):
        pytest.skip("not repeatable: it is measured anew each time")
    for seed in range(2):
        dice = torch.Generator().manual_seed(seed)
        for magnitude in magnitudes.values():
            magnitude.mul_(torch.rand(magnitude.shape, generator=dice, dtype=torch.float64) < 0.9)
        expected = measured(network, magnitudes)
        found = repeat.run()
        assert found is not None
        flow, wanted_flow = found[0], expected[0]
        assert flow.log2 == pytest.approx(wanted_flow.log2, abs=1e-12)
        assert (flow.had_shifts, flow.loose) == (wanted_flow.had_shifts, wanted_flow.loose)
        assert repeat.agrees_with(*expected)
        wanted = scores(expected, magnitudes)
        for name, score in scores(found, magnitudes).items():
            torch.testing.assert_close(score, wanted[name], rtol=1e-10, atol=1e-14)


def test_most_networks_can_be_repeated() -> None:
    cases = [ZOO[name]() for name in NAMES]
    repeated = sum(isinstance(record(case.model, case.example)[2], Replay) for case in cases)
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


def picks(_: Any, x: Any) -> Any:
    """Takes the entries that are large enough."""
    plain = x.as_subclass(Tensor)
    return as_flow(plain[plain > 0.1], x.exponent)


@pytest.mark.parametrize("rule", [reads, draws, picks])
def test_rules_that_look_at_numbers_are_not_repeated(rule: Callable[..., Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(dispatch._USER_RULES, "special_entr", rule)
        assert isinstance(record(Special(3, 3), torch.ones(1, 3))[2], CannotServeError)


def test_a_flow_that_vanishes_or_drifts_is_measured_anew() -> None:
    _, magnitudes, repeat = replay_of(
        nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)), torch.ones(1, 3)
    )
    assert repeat.run() is not None
    magnitudes["0.weight"].mul_(2.0**-50)
    assert repeat.run() is None
    magnitudes["0.weight"].zero_()
    assert repeat.run() is None


def test_a_measurement_with_another_exponent_proves_a_recording() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    network, magnitudes, repeat = replay_of(model, torch.ones(1, 3))
    magnitudes["0.weight"].mul_(2.0**-25)
    flow, gradients = measured(network, magnitudes)
    assert flow.exponent != repeat.first.exponent
    assert repeat.agrees_with(flow, gradients)


def engine_for(model: nn.Module, example: Tensor) -> FastEngine:
    network = open_network(model, example)
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}
    return FastEngine(network, masks, EngineSettings(steps=9))


def test_runs_use_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded at the first step, proved at the second, replayed from the third on: no pass of the model any more."""
    passes, plain = [], measuring.measure

    def counted(*args: Any, **options: Any) -> Measurement:
        passes.append(options)
        return plain(*args, **options)

    monkeypatch.setattr(measuring, "measure", counted)
    engine = engine_for(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.ones(1, 8))
    for _ in range(5):
        engine.remove(engine.lightest(engine.measure(), 3))
    assert len(passes) == 2
    assert engine.measurements == 5
    assert not engine.fallbacks


def test_a_replay_that_differs_is_an_error_in_strict_mode_and_a_fallback_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replay, "agrees_with", lambda *_: False)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with pytest.raises(FallbackError, match="its replay differs from a new measurement"):
        synflow.prune(model, torch.ones(1, 8), compression=4, steps=5)
    monkeypatch.setenv("SYNFLOW_STRICT", "0")
    masks = synflow.prune(model, torch.ones(1, 8), compression=4, steps=5)
    assert masks.about["fallbacks"].startswith("recording: ")
    plain = synflow.prune(model, torch.ones(1, 8), compression=4, steps=5, engine="plain")
    assert all(torch.equal(masks[name], plain[name]) for name in plain)


class LargeBranch(nn.Module):
    """A branch of another exponent; where its flow is zero, it counts as zero in the sum, whatever its exponent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.branch(x * 2.0**60) * 2.0**-60


def test_a_recording_of_a_dead_branch_goes_when_its_weights_come_back() -> None:
    engine = engine_for(LargeBranch(), torch.ones(1, 4))
    masks = engine.masks()
    dead = masks | {"branch.weight": torch.zeros(4, 4, dtype=torch.bool)}
    scores = engine.measure(WITHOUT_SHIFTS)
    undo = engine.remove(engine.removal(dead, scores))
    engine.measure()
    undo()
    expected = measure(engine.network, masks)
    for _ in range(3):
        engine._last = None
        found = engine.measure()
        assert found.flow.log2 == pytest.approx(expected.log2, abs=1e-5)
        assert all(float(flow) > 0 for flow in found.layer_flows.values())
    assert not engine.fallbacks


def test_what_cannot_be_watched_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise NotImplementedError("no storage")

    monkeypatch.setattr(recording, "_key", fails)
    monkeypatch.setenv("SYNFLOW_STRICT", "0")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    masks = synflow.prune(model, torch.ones(1, 8), compression=4, steps=5)
    assert sum(int(mask.sum()) for mask in masks.values()) == 24
    assert masks.about["engine"] == "fast"
    assert masks.about["fallbacks"] == "recording: NotImplementedError: no storage"


class WritesIntoAPart(nn.Module):
    """An in-place operation on a part of a tensor that is read as a whole afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y[:, :2].mul_(3.0)
        return self.last(y)


def test_a_write_into_a_part_is_repeated() -> None:
    network, magnitudes, repeat = replay_of(WritesIntoAPart(), torch.ones(1, 3))
    magnitudes["first.weight"][0, 0] = 0.0
    found = repeat.run()
    assert found is not None
    assert found[0].log2 == pytest.approx(measured(network, magnitudes)[0].log2, abs=1e-12)


def test_a_view_that_was_not_seen_to_be_made_cannot_be_repeated() -> None:
    weight = torch.ones(3, dtype=torch.float64)
    recorder = recording._Recorder({"weight": weight})
    with recorder:
        flow = weight * 2
        with _disable_current_modes():
            part = flow[1:]
        part.sum()
    assert "by a view that no recorded operation made" in recorder.problem


def test_a_write_into_the_weights_cannot_be_repeated() -> None:
    weight = torch.ones(3, dtype=torch.float64)
    recorder = recording._Recorder({"weight": weight})
    with recorder:
        weight.mul_(2.0)
    assert "writes into a constant" in recorder.problem
