"""How density falls: each schedule against its formula, and from any start to any end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from synflow import SCHEDULES

TWINS = {
    "exponential": reference.density_exponential,
    "linear": reference.density_linear,
    "linear_density": reference.density_linear_in_density,
}
steps = st.integers(1, 200)
densities = st.floats(1e-7, 1)


def test_names():
    assert set(SCHEDULES) == {*TWINS, "certified"}


@given(st.sampled_from(sorted(TWINS)), steps, densities, st.data())
def test_each_schedule_is_its_formula(name, steps, density, data):
    step = data.draw(st.integers(0, steps))
    assert SCHEDULES[name](step, steps, density) == pytest.approx(TWINS[name](1 / density, step, steps), rel=1e-9)


@given(st.sampled_from(sorted(SCHEDULES)), steps, densities)
def test_density_falls_from_one_to_the_target(name, steps, density):
    fall = [SCHEDULES[name](step, steps, density) for step in range(1, steps + 1)]
    assert fall[-1] == pytest.approx(density)
    assert all(density * (1 - 1e-9) <= each <= 1 for each in fall)
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(fall))
    if name != "certified":
        assert SCHEDULES[name](0, steps, density) == 1


def test_the_certified_schedule_aims_straight_at_the_target():
    assert SCHEDULES["certified"](1, 50, 0.01) == 0.01
