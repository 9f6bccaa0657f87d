"""From scores to masks: exact counts, ties by position, and layer counts by rule."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import family_reference
import reference
from checks import arrays, kept, mlp, nested
from synflow import SCOPES, SynflowError
from synflow.network.private_copy import open_network
from synflow.pruning.scopes import allocate, apportion, erk_scope, layer_scope, uniform_scope
from synflow.support.ranking import keep_best

SHAPES = {"first": (4, 3), "conv": (5, 2, 3, 3), "wide": (20, 30), "vector": (7,), "last": (2, 5)}
TOTAL = sum(math.prod(shape) for shape in SHAPES.values())


@st.composite
def problems(draw, dtypes=(torch.float32, torch.float64)):
    """Scores with many ties, candidates, and a count that fits."""
    seed, levels = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([1, 2, 5, 1000]))
    generator = torch.Generator().manual_seed(seed)
    dtype = draw(st.sampled_from(dtypes))
    shapes = draw(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=4))
    scores = {
        str(i): (torch.randint(levels, shape, generator=generator) - levels // 2).to(dtype) / 8
        for i, shape in enumerate(shapes)
    }
    share = draw(st.sampled_from([0.3, 0.9, 1.0]))
    candidates = {name: torch.rand(s.shape, generator=generator) <= share for name, s in scores.items()}
    total = kept(candidates)
    return scores, candidates, draw(st.integers(0, total))


@given(problems())
def test_the_best_are_kept_exactly_and_ties_go_by_position(problem):
    scores, candidates, count = problem
    expected = reference.top_k(arrays(scores), count, {name: mask.numpy() for name, mask in candidates.items()})
    found = keep_best(scores, candidates, count)
    for name, mask in found.items():
        assert mask.dtype == torch.bool
        assert np.array_equal(mask.numpy(), expected[name])


@given(problems(), st.sampled_from(sorted(SCOPES)))
def test_every_scope_is_exact_in_total_and_nested(problem, scope):
    scores, candidates, count = problem
    found = SCOPES[scope](scores, candidates, count)
    assert kept(found) == count
    assert nested(found, candidates)
    assert list(found) == list(candidates)


def test_masks_are_new_tensors():
    scores = {"a": torch.arange(4.0)}
    candidates = {"a": torch.ones(4, dtype=torch.bool)}
    for count in (0, 2, 4):
        found = keep_best(scores, candidates, count)
        found["a"][:] = False
        assert candidates["a"].all()


def test_infinite_scores_have_an_order_and_nan_does_not():
    scores = {"a": torch.tensor([math.inf, -math.inf, 0.0, math.inf])}
    candidates = {"a": torch.ones(4, dtype=torch.bool)}
    assert keep_best(scores, candidates, 2)["a"].tolist() == [True, False, False, True]
    assert keep_best(scores, candidates, 3)["a"].tolist() == [True, False, True, True]
    scores["a"][2] = math.nan
    with pytest.raises(SynflowError, match="a: 1 of 4 scores are nan; no ranking is possible"):
        keep_best(scores, candidates, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.int64])
def test_scores_of_any_type_can_be_ranked(dtype):
    scores = {"a": torch.tensor([3, 1, 2], dtype=dtype), "b": torch.tensor([[2, 5]], dtype=dtype)}
    candidates = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    found = keep_best(scores, candidates, 3)
    assert (found["a"].tolist(), found["b"].tolist()) == ([True, False, True], [[False, True]])


@given(st.integers(0, 2**16), st.integers(1, 40))
def test_layers_of_different_precision_are_ranked_together(seed, count):
    generator = torch.Generator().manual_seed(seed)
    scores = {
        "half": torch.rand(10, generator=generator).bfloat16(),
        "single": torch.rand(10, generator=generator),
        "double": torch.rand(20, generator=generator, dtype=torch.float64),
    }
    candidates = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    found = keep_best(scores, candidates, count)
    assert kept(found) == count
    inside = min(float(scores[n][m].double().min()) for n, m in found.items() if m.any())
    outside = max((float(scores[n][~m].double().max()) for n, m in found.items() if (~m).any()), default=-1)
    assert inside >= outside


def test_more_than_there_are_is_refused():
    scores = {"a": torch.arange(4.0)}
    with pytest.raises(SynflowError, match="3 weights are to stay but only 2 are left"):
        keep_best(scores, {"a": torch.tensor([True, True, False, False])}, 3)
    with pytest.raises(SynflowError, match="3 weights are to stay but only 2 are left"):
        layer_scope(scores, {"a": torch.tensor([True, True, False, False])}, 3)


shares = st.lists(st.floats(0, 100), min_size=1, max_size=6)


@given(shares, st.data())
def test_apportionment_is_exact_within_limits_and_starves_no_layer(shares, data):
    limits = np.array(data.draw(st.lists(st.integers(0, 50), min_size=len(shares), max_size=len(shares))))
    total = data.draw(st.integers(0, int(limits.sum())))
    counts = apportion(np.array(shares), limits, total)
    assert counts.sum() == total
    assert (counts >= 0).all()
    assert (counts <= limits).all()
    if total >= np.count_nonzero(limits):
        assert (counts[limits > 0] >= 1).all()


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.floats(0.05, 1))
def test_apportionment_is_within_one_of_proportion(sizes, density):
    limits = np.array(sizes)
    total = round(density * limits.sum())
    counts = apportion(limits.astype(float), limits, total)
    ideal = limits * total / limits.sum()
    if (ideal >= 1).all():
        assert (np.abs(counts - ideal) <= 1 + 1e-6).all()


def tensors():
    generator = torch.Generator().manual_seed(0)
    scores = {name: torch.rand(shape, generator=generator) for name, shape in SHAPES.items()}
    return scores, {name: torch.ones(shape, dtype=torch.bool) for name, shape in SHAPES.items()}


def counts_of(masks):
    return {name: int(mask.sum()) for name, mask in masks.items()}


@pytest.mark.parametrize("density", [0.5, 0.1, 0.03])
def test_layer_scope_gives_every_layer_the_same_density(density):
    scores, ones = tensors()
    keep = round(TOTAL * density)
    found = layer_scope(scores, ones, keep)
    assert kept(found) == keep
    for name, number in counts_of(found).items():
        assert number == pytest.approx(max(1, density * math.prod(SHAPES[name])), abs=1.01)
    for name, mask in found.items():
        assert not mask.all()
        assert scores[name][mask].min() >= scores[name][~mask].max()


def test_as_many_weights_as_layers_leave_one_in_each():
    shares, limits = np.array([5.0, 3.0, 0.1]), np.array([9, 9, 9])
    assert apportion(shares, limits, 3).tolist() == [1, 1, 1]
    assert apportion(shares, limits, 2).tolist() == [1, 1, 0]


@pytest.mark.parametrize("density", [0.9, 0.5, 0.2, 0.1, 0.02])
def test_erk_against_its_formula(density):
    scores, ones = tensors()
    keep = round(TOTAL * density)
    expected = reference.erk_densities(SHAPES, keep / TOTAL)
    found = counts_of(erk_scope(scores, ones, keep))
    assert sum(found.values()) == keep
    for name, number in found.items():
        assert number == pytest.approx(max(1, expected[name] * math.prod(SHAPES[name])), abs=1.01), name


@pytest.mark.parametrize("density", [0.9, 0.5, 0.2, 0.1])
@pytest.mark.parametrize("name", ["er", "igq", "smart"])
def test_densities_against_their_formulas(name, density):
    scores, ones = tensors()
    keep = round(TOTAL * density)
    expected = getattr(family_reference, f"{name}_densities")(SHAPES, keep / TOTAL)
    found = counts_of(SCOPES[name](scores, ones, keep))
    assert sum(found.values()) == keep
    for layer, number in found.items():
        assert number == pytest.approx(max(1, expected[layer] * math.prod(SHAPES[layer])), abs=1.01), layer


@pytest.mark.parametrize("scope", sorted(set(SCOPES) - {"global"}))
def test_what_must_stay_stays_whatever_the_densities(scope):
    """A guard marks weights by infinite scores; a layer with more of them than its share keeps them all."""
    scores, ones = tensors()
    scores["last"][:] = math.inf
    scores["wide"][:2] = math.inf
    found = SCOPES[scope](scores, ones, 80)
    assert kept(found) == 80
    assert found["last"].all()
    assert found["wide"][:2].all()
    assert all(mask.any() for mask in found.values())
    assert kept(SCOPES[scope](scores, ones, 20)) == 20  # too few for all of them


def test_a_shield_stays_in_any_scope():
    """A user's scope knows nothing of a shield: it takes what it takes, and the lightest of that make room."""
    network = open_network(mlp(3, 4, 2), torch.ones(1, 3))
    scores = {"0.weight": torch.arange(12.0).view(4, 3), "2.weight": torch.arange(12.0, 20.0).view(2, 4)}
    ones = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
    last = {"0.weight": scores["0.weight"] >= 10, "2.weight": ones["2.weight"]}
    shield = {"0.weight": scores["0.weight"] == 0, "2.weight": ~ones["2.weight"]}
    found = allocate(network, lambda *_: last, scores, ones, 10, shield)
    assert torch.cat([mask.flatten() for mask in found.values()]).nonzero().flatten().tolist() == [0, *range(11, 20)]


def test_uniform_keeps_the_first_layer_dense_where_that_fits():
    scores, ones = tensors()
    found = counts_of(uniform_scope(scores, ones, 200))
    rest = TOTAL - 12
    assert found["first"] == 12
    assert sum(found.values()) == 200
    for name in ("conv", "wide", "last"):
        assert found[name] == pytest.approx(188 * math.prod(SHAPES[name]) / rest, abs=1.01)
    assert counts_of(uniform_scope(scores, ones, 15)) == counts_of(layer_scope(scores, ones, 15))
    only = {"first": scores["first"]}
    assert counts_of(uniform_scope(only, {"first": ones["first"]}, 3)) == {"first": 3}


def test_scopes_continue_from_masks():
    """A layer that has fewer candidates left than its share gives the rest to the others."""
    scores, ones = tensors()
    ones["wide"][1:] = False
    for scope in (layer_scope, erk_scope, uniform_scope):
        found = scope(scores, ones, 120)
        assert kept(found) == 120
        assert found["wide"].sum() <= 30


def test_names_of_scopes():
    assert set(SCOPES) == {"global", "layer", "uniform", "er", "erk", "igq", "smart"}
