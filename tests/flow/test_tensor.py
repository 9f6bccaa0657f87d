"""Flows: the exponent is exact, never overflows, and changes no digit where plain arithmetic would have held."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import synflow
from checks import mlp, plain_scores
from synflow.flow.dispatch import LinearizationMode
from synflow.flow.measure import measure
from synflow.flow.passes import FlowPass
from synflow.flow.tensor import Flow, as_flow, both, common_exponent, either, flows, peak, rescaled, scaled
from synflow.models.built_in import build
from synflow.network.private_copy import open_network

floats = st.floats(2.0**-20, 2.0**20, width=32)
powers = st.integers(-3000, 3000)


@given(st.lists(floats, min_size=1, max_size=4), st.integers(-90, 90))
def test_scaling_by_a_power_of_two_is_exact(values, power):
    data = torch.tensor(values)
    assert torch.equal(scaled(data, power), torch.ldexp(data.double(), torch.tensor(power)).float())
    assert torch.equal(scaled(scaled(data, power), -power), data)


@pytest.mark.parametrize("power", [-200, -400, -401, -5000])
def test_scaling_down_too_far_gives_zero_not_nan(power):
    data = torch.tensor([1.0, 3.0], requires_grad=True)
    small = scaled(data, power)
    assert torch.equal(small, torch.zeros(2))
    small.sum().backward()
    assert torch.equal(data.grad, torch.zeros(2))


@pytest.mark.parametrize("power", [-900, -450, -101, 101, 900])
def test_scaling_holds_as_far_as_double_precision_does(power):
    data = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert torch.equal(scaled(data, power), data * math.ldexp(1.0, power))


@given(st.lists(floats, min_size=1, max_size=4), powers, st.integers(-100, 90))
def test_normalising_keeps_the_value_and_brings_the_peak_near_one(values, exponent, by):
    data = torch.tensor(values) * 2.0**by
    flow = rescaled(data.clone(), exponent)
    assert 2.0**-17 <= peak(flow) <= 2.0**16
    assert torch.equal(scaled(flow.as_subclass(torch.Tensor), flow.exponent - exponent), data)


def test_normalising_within_the_window_touches_nothing():
    data = torch.tensor([2.0**15, 1.0])
    flow = rescaled(data, 7)
    assert flow is data
    assert flow.exponent == 7
    zero = rescaled(torch.zeros(3), -4)
    assert (peak(zero), zero.exponent) == (0.0, -4)
    assert peak(torch.empty(0)) == 0.0


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_flow_that_is_not_finite_is_refused(bad):
    with pytest.raises(FloatingPointError, match=f"the flow became {bad}"):
        rescaled(torch.tensor([1.0, bad]), 0)


def test_a_zero_flow_does_not_set_the_common_exponent():
    live, dead, other = as_flow(torch.ones(1), -900), as_flow(torch.zeros(1), 50), as_flow(torch.ones(1), -901)
    assert common_exponent([live, dead, other]) == -900
    assert common_exponent([dead]) == 50
    assert common_exponent([dead, as_flow(torch.zeros(2), 60)]) == 60


def run(function, *values):
    """An operation on flows given as (data, exponent), in a pass of its own."""
    with LinearizationMode(FlowPass(), {}):
        return function(*(as_flow(torch.tensor(data), exponent) for data, exponent in values))


@given(floats, powers, floats, powers)
def test_sums_align_exponents(a, e, b, f):
    total = run(torch.add, ([a], e), ([b], f))
    log2 = math.log2(peak(total)) + total.exponent
    high, low = max(math.log2(a) + e, math.log2(b) + f), min(math.log2(a) + e, math.log2(b) + f)
    assert log2 == pytest.approx(high + math.log2(1 + 2.0 ** (low - high)), abs=1e-5)


@given(floats, powers, floats, powers)
def test_products_add_exponents(a, e, b, f):
    result = run(torch.mul, ([a], e), ([b], f))
    assert math.log2(peak(result)) + result.exponent == pytest.approx(math.log2(a) + e + math.log2(b) + f, abs=1e-5)


@given(floats, st.integers(-200, 200), st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0]))
def test_powers_multiply_exponents(a, e, power):
    result = run(lambda x: x**power, ([a], e))
    assert math.log2(peak(result)) + result.exponent == pytest.approx(power * (math.log2(a) + e), abs=1e-3)


def test_flows_are_found_in_nested_arguments():
    first, second = as_flow(torch.ones(1)), as_flow(torch.ones(1))
    assert [id(f) for f in flows(([first, torch.ones(1)], {"x": (second, 3)}))] == [id(first), id(second)]
    assert type(as_flow(torch.ones(2))) is Flow
    assert type(as_flow(nn.Parameter(torch.ones(2)))) is Flow


def test_degrees_of_sums_and_products():
    def flow(low, high):
        return as_flow(torch.ones(1), 0, (np.array(low), np.array(high)))

    a, b, unknown = flow([1, 0], [1, 0]), flow([0, 2], [1, 3]), as_flow(torch.ones(1))
    assert [d.tolist() for d in either([a, b, unknown])] == [[0, 0], [1, 3]]
    assert [d.tolist() for d in both([a, b, unknown])] == [[1, 2], [2, 3]]
    assert either([unknown]) is None
    assert both([unknown]) is None


@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.booleans(), st.integers(0, 2**16))
def test_shallow_networks_score_as_plain_float32_does_to_the_last_bit(widths, bias, seed):
    torch.manual_seed(seed)
    model, example = mlp(*widths, bias=bias), torch.ones(2, widths[0])
    value, expected = plain_scores(model, example)
    assume(value < 2.0**100)
    found = measure(open_network(model, example))
    assert found.value * 2.0**found.exponent == value
    for name, score in found.scores.items():
        assert torch.equal(score * 2.0**found.exponent, expected[name])


def test_a_convolutional_network_scores_as_plain_float32_does_to_the_last_bit():
    model, example = build("vgg11_bn", 10, (3, 32, 32)), torch.ones(1, 3, 32, 32)
    value, expected = plain_scores(model, example)
    found = measure(open_network(model, example))
    assert found.exponent > 16
    assert found.value * 2.0**found.exponent == value
    for name, score in found.scores.items():
        assert torch.equal(score * 2.0**found.exponent, expected[name]), name


def test_a_model_may_print_what_it_computes(capsys):
    class Chatty(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            print(f"{y.mean():.3f} {y.mean()} {y}")
            return y

    model = Chatty(3, 2)
    assert synflow.prune(model, torch.ones(1, 3), compression=2)["weight"].sum() == 3
    assert capsys.readouterr().out
