"""Models that write in their forward pass: into weights, states, buffers. The user's model stays as it is."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from synflow.flow import dispatch
from synflow.flow.measure import measure
from synflow.flow.passes import PassOptions
from synflow.network.flops import flops
from synflow.network.private_copy import open_network

X = torch.ones(1, 4, dtype=torch.float64)
LOWER = torch.tril(torch.ones(6, 6, dtype=torch.float64))


class Writer(nn.Module):
    """Three layers; before the second one, `write` may write into it, into a state, or return another input."""

    def __init__(self, write=lambda model, h: None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("total", torch.zeros(1, 6))
        self.write, self.state, self.tensor, self.cache, self.done = write, None, torch.zeros(1, 6).double(), [], False
        self.double()

    def forward(self, x):
        h = F.relu(self.first(x))
        other = self.write(self, h)
        return self.last(self.middle(h if other is None else other))


def held(model):
    """All that a model holds, to compare."""
    return copy.deepcopy((model.state_dict(), model.state, model.tensor, model.cache, model.done))


def same(a, b):
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return all(map(same, a, b)) if isinstance(a, (tuple, list)) else a == b


def scaled_once(model, _):
    if not model.done:
        with torch.no_grad():
            model.middle.weight.mul_(4.0)
        model.done = True


def by_local_name(model, h):
    weight = model.middle.weight
    with torch.no_grad():
        weight.mul_(LOWER)
    return F.linear(h, weight)


def set_data(model, _):
    model.middle.weight.data = model.middle.weight.data * LOWER


def in_place(model, _):
    model.middle.weight.data *= LOWER


def by_index(model, _):
    model.middle.weight.data[LOWER == 0] = 0.0


def filled(model, _):
    model.middle.weight.data.masked_fill_(LOWER == 0, 0.0)


def copied(model, _):
    model.middle.weight.data.copy_(model.middle.weight * LOWER)


def clamped(model, _):
    model.middle.weight.data.clamp_(-0.1, 0.1)


def moved(model, _):
    model.middle = model.middle.to(torch.float64)


WEIGHTS = [scaled_once, by_local_name, set_data, in_place, by_index, filled, copied, clamped, moved]


def remembered(model, h):
    model.state = h if model.state is None else h + model.state
    return model.state


def buffered(model, h):
    model.total.copy_(h.detach() + model.total)
    return h + model.total


def assigned(model, h):
    model.total = h + model.total
    return model.total


def kept_as_tensor(model, h):
    model.tensor.add_(h.detach())
    return h + model.tensor


def listed(model, h):
    model.cache.append(h)
    return sum(model.cache)


STATES = [remembered, buffered, assigned, kept_as_tensor, listed]


@pytest.mark.parametrize("write", WEIGHTS + STATES)
def test_the_model_stays_as_it_is_and_both_engines_agree(write):
    model = Writer(write)
    before = held(model)
    how = {"compression": 4, "score": "balanced", "steps": 6}
    fast, plain = (synflow.prune(model, X, **how, engine=engine) for engine in ("fast", "plain"))
    assert all(torch.equal(fast[name], plain[name]) for name in fast)
    certificate = synflow.certify(model, fast, X)
    assert certificate.connected
    assert not certificate.dead_layers
    synflow.score(model, X, "snip", [(X, torch.tensor([0]))])
    flops(model, X)
    assert same(held(model), before)


@pytest.mark.parametrize("write", WEIGHTS)
def test_the_flow_sees_what_was_written(write):
    """As of a model whose weights had these values from the start; an upper bound on a weight is an identity."""
    done = Writer()
    if write is scaled_once:
        done.middle.weight.data.mul_(4.0)
    elif write not in (clamped, moved):
        done.middle.weight.data.mul_(LOWER)
    if write is by_local_name:  # the layer is applied twice
        done.write = lambda model, h: F.linear(h, model.middle.weight)
    found, expected = (measure(open_network(model, X)) for model in (Writer(write), done))
    assert found.value * 2.0**found.exponent == pytest.approx(expected.value * 2.0**expected.exponent, rel=1e-12)
    for name, score in expected.scores.items():
        torch.testing.assert_close(found.scores[name] * 2.0**found.exponent, score * 2.0**expected.exponent)


@pytest.mark.parametrize("write", STATES)
def test_every_pass_begins_in_the_same_state(write):
    network = open_network(Writer(write), X)
    values = {measure(network).value for _ in range(3)}
    assert len(values) == 1


def overwritten(model, _):
    model.middle.weight.data.copy_(LOWER)


def replaced(model, _):
    model.middle.weight.data = LOWER


@pytest.mark.parametrize("write", [overwritten, replaced])
def test_weights_that_are_given_other_values_are_refused(write):
    with pytest.raises(synflow.SynflowError, match="values that do not depend on it.*protect"):
        synflow.prune(Writer(write), X, compression=2)


def test_writing_into_a_part_of_a_weight_is_refused():
    with pytest.raises(synflow.SynflowError, match="writes into a part of a prunable weight.*protect"):
        synflow.prune(Writer(lambda model, _: model.middle.weight.data[:3].mul_(2.0)), X, compression=2)


def test_changing_the_shape_of_a_weight_is_refused():
    def write(model, _):
        model.middle.weight.data = model.middle.weight.data[:3]

    with pytest.raises(synflow.SynflowError, match=r"shape of a prunable weight from \(6, 6\) to \(3, 6\)"):
        synflow.prune(Writer(write), X, compression=2)


def test_a_state_that_is_written_after_it_was_used_is_differentiated():
    """Layers share a tensor of states, of which each reads and writes a part, as in recurrent language models."""

    class States(Writer):
        def forward(self, x):
            states = torch.ones(1, 6, 3, dtype=x.dtype)
            for place, layer in enumerate((self.first, self.middle, self.last)):
                part = states[:, : layer.in_features, place]
                h = layer(x * part)
                states[:, : h.size(1), place] = h
                x = h
            return x

    found = measure(open_network(States(), X))
    assert all(bool((score > 0).all()) for score in found.scores.values())
    masks = synflow.prune(States(), X, compression=3, score="balanced", steps=4)
    assert not synflow.certify(States(), masks, X).dead_layers


def log2_of(write, factor=2.0**-200):
    """log2 of the flow of a writer whose first layer is scaled: far from one, flows have an exponent."""
    model = Writer(write)
    model.first.weight.data.mul_(factor)
    for layer in (model.first, model.middle, model.last):
        layer.bias.data.zero_()
    return measure(open_network(model, X)).log2


def test_a_flow_is_written_over_a_far_larger_one():
    """Far smaller than the smallest number of the type beside what was there before."""

    def over(_, h):
        large = h * 2.0**700 * 2.0**700
        large.copy_(h)
        return large

    assert log2_of(over) == pytest.approx(log2_of(lambda _, h: None), rel=1e-12)


@pytest.mark.parametrize("factor", [2.0**-200, 2.0**200])
def test_a_flow_is_written_beside_a_constant_of_another_size(factor):
    def beside(_, h):
        whole = torch.full((1, 6), 5.0, dtype=torch.float64)
        whole[:, :2] = h[:, :2]
        return whole

    def joined(_, h):
        return torch.cat([h[:, :2], torch.full((1, 4), 5.0, dtype=torch.float64)], 1)

    assert log2_of(beside, factor) == pytest.approx(log2_of(joined, factor), rel=1e-12)


@pytest.mark.parametrize("factor", [2.0**-200, 2.0**200])
def test_a_view_shows_what_was_written_at_its_size(factor):
    def through_a_view(_, h):
        whole = torch.zeros(1, 6, dtype=torch.float64)
        part = whole[:, 2:]
        whole[:] = h
        return F.pad(part, (2, 0))

    def plain(_, h):
        return F.pad(h[:, 2:], (2, 0))

    assert log2_of(through_a_view, factor) == pytest.approx(log2_of(plain, factor), rel=1e-12)


def test_degrees_are_those_of_what_was_written():
    def over(model, h):
        other = model.middle(h)
        h.copy_(other)

    found = measure(open_network(Writer(over), X), options=PassOptions(shifts=False, trace=True))
    assert [degrees.tolist() for degrees in found.degrees] == [[1, 2, 1], [1, 2, 1]]


def test_a_running_maximum_may_start_far_below_zero():
    """Its start is no source of flow: -1e38 would outweigh every flow if it counted with its absolute value."""

    def largest(start):
        def write(_, h):
            return torch.maximum(torch.full_like(h, start), h)

        return measure(open_network(Writer(write), X))

    far, zero = largest(-1e38), largest(0.0)
    assert far.value * 2.0**far.exponent == zero.value * 2.0**zero.exponent
    assert not far.loose


def test_a_model_that_fails_on_its_example_by_itself_is_told_apart():
    def write(*_):
        raise ValueError("no such state")

    with pytest.raises(synflow.SynflowError, match="no such state. Outside of synflow the model fails on it too"):
        synflow.prune(Writer(write), X, compression=2)

    def decides(_, h):
        if type(h) is not torch.Tensor:
            raise ValueError("a tensor of another type")

    with pytest.raises(synflow.SynflowError, match="another type. Outside of synflow the model runs on it.*register"):
        synflow.prune(Writer(decides), X, compression=2)


def test_a_pass_ends_with_its_mode_and_does_not_wait_for_the_garbage_collector(monkeypatch):
    modes = []
    made = dispatch.LinearizationMode.__init__

    def noted(self, *args, **kwargs):
        made(self, *args, **kwargs)
        modes.append(weakref.ref(self))

    monkeypatch.setattr(dispatch.LinearizationMode, "__init__", noted)
    gc.disable()
    try:
        synflow.score(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(1, 3))
        assert modes
        assert not any(mode() for mode in modes)
    finally:
        gc.enable()
