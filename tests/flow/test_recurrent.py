"""Recurrent layers: all steps of time at once give what the steps one by one give, and in time that users wait."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import synflow
from synflow.errors import SynflowError
from synflow.flow.measure import measure
from synflow.flow.passes import WITHOUT_SHIFTS, PassOptions
from synflow.flow.paths import BOOLEANS
from synflow.flow.rules import recurrent
from synflow.network.private_copy import open_network


class Tagger(nn.Module):
    """A recurrent layer and a head on all of its states."""

    def __init__(self, kind, width, inner, **options):
        super().__init__()
        self.cells = kind(width, inner, **options)
        self.head = nn.Linear(inner * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x, state=None):
        output, last = self.cells(x, state)
        return self.head(output), last


@st.composite
def taggers(draw):
    """A recurrent network with weights of any size, some of them zero, and an input, at times with states."""
    kind, inner, layers = (
        draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN])),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 2)),
    )
    both_ways, batched = draw(st.booleans()), draw(st.booleans())
    torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
    model = Tagger(kind, 4, inner, num_layers=layers, bidirectional=both_ways, bias=draw(st.booleans())).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= draw(st.sampled_from([0.01, 1, 30])) * (
                torch.rand_like(parameter) >= draw(st.sampled_from([0, 0.6]))
            )
    batch = [2] if batched else []
    x = torch.ones(draw(st.sampled_from([1, 3, 60])), *batch, 4)
    if not draw(st.booleans()):
        return model, x
    state = torch.ones(layers * (2 if both_ways else 1), *batch, inner)
    return model, (x, (state, state) if kind is nn.LSTM else state)


@pytest.mark.parametrize(
    "options", [PassOptions(), WITHOUT_SHIFTS, BOOLEANS], ids=["usual", "without shifts", "booleans"]
)
@settings(max_examples=min(25, settings.default.max_examples))
@given(case=taggers())
def test_all_steps_of_time_at_once_give_what_single_steps_give(case, options):
    network = open_network(*case)
    found = measure(network, options=options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent, "can_scan", lambda *_: False)
        slow = measure(network, options=options)
    assert found.log2 == pytest.approx(slow.log2, abs=1e-9)
    unit = 2.0 ** (found.exponent - slow.exponent)
    for name, score in slow.scores.items():
        torch.testing.assert_close(found.scores[name] * unit, score, rtol=1e-9, atol=1e-12 * slow.value)
    for fact in ("had_shifts", "loose", "bent", "input_reached"):
        assert getattr(found, fact) == getattr(slow, fact), fact


def test_a_language_model_is_not_run_step_by_step_in_time():
    """Step by step in time, each step takes all rules of the cell and their gradients."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.cells, self.head = (
                nn.Embedding(50, 32),
                nn.LSTM(32, 32, 2, batch_first=True),
                nn.Linear(32, 50),
            )

        def forward(self, ids):
            return self.head(self.cells(self.words(ids))[0])

    def operations():
        """How many operations of torch a measurement takes."""
        with torch.profiler.profile() as profile:
            synflow.score(Model(), torch.randint(50, (1, 16)))
        return len(profile.events())

    quick = operations()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent, "can_scan", lambda *_: False)
        slow = operations()
    assert 4 * quick < slow, (quick, slow)


class Stacked(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], apart: bool) -> None:
        super().__init__()
        self.first = kind(16, 32, 1 if apart else 2, batch_first=True)
        self.second = kind(32, 32, batch_first=True) if apart else None
        self.head = nn.Linear(32, 3)
        for name, weight in self.named_parameters():
            if "weight_hh" in name:
                weight.data *= 32  # so that few steps of time are enough

    def forward(self, x: Tensor) -> Tensor:
        states = self.first(x)[0]
        states = states if self.second is None else self.second(states.relu())[0]
        found: Tensor = self.head(states[:, -1])
        return found


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_flow_that_outgrows_its_type_over_time_is_refused(kind: type[nn.RNNBase], apart: bool) -> None:
    torch.manual_seed(0)
    model = Stacked(kind, apart)
    with pytest.raises(SynflowError, match=r"grows by 2\^\d+ over 24 steps of time.*model.double\(\)"):
        synflow.prune(model, torch.ones(1, 24, 16), compression=4, steps=1)
    wide = synflow.prune(model.double(), torch.ones(1, 24, 16, dtype=torch.float64), compression=4, steps=1)
    assert sum(int(mask.sum()) for mask in wide.values()) == round(sum(m.numel() for m in wide.values()) / 4)
    short = synflow.prune(model.float(), torch.ones(1, 8, 16), compression=4, steps=2)
    assert all(bool(mask.any()) for mask in short.values())


def test_both_directions_read_the_same_inputs_however_much_one_grows() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LSTM(16, 128, batch_first=True, bidirectional=True), Last(), nn.Linear(256, 3))
    assert synflow.prune(model, torch.ones(1, 80, 16), compression=4, steps=5)


class Last(nn.Module):
    def forward(self, found: tuple[Tensor, Tensor]) -> Tensor:
        return found[0][:, -1]
