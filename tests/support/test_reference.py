"""The slow twins agree with each other and with figures worked out by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reference


def random_weights(seed, sizes):
    generator = np.random.default_rng(seed)
    return {f"{i}": generator.normal(size=(b, a)) for i, (a, b) in enumerate(itertools.pairwise(sizes))}


sizes = st.lists(st.integers(1, 4), min_size=2, max_size=4)
seeds = st.integers(0, 2**16)


@given(seeds, sizes)
def test_paths_and_matrix_products_agree(seed, sizes):
    weights = random_weights(seed, sizes)
    terms = reference.mlp_terms(weights)
    assert len(terms) == math.prod(sizes)
    matrices = list(weights.values())
    assert reference.flow(terms, weights) == pytest.approx(reference.chain_flow(matrices), rel=1e-12)
    for by_path, by_product in zip(
        reference.scores(terms, weights).values(), reference.chain_scores(matrices), strict=True
    ):
        np.testing.assert_allclose(by_path, by_product, rtol=1e-12)
        assert by_path.sum() == pytest.approx(reference.chain_flow(matrices), rel=1e-12)
    for imbalance in reference.hidden_imbalance(reference.chain_scores(matrices)):
        np.testing.assert_allclose(imbalance, 0, atol=1e-10 * reference.chain_flow(matrices))


def test_biases_start_paths_of_their_own():
    weights = {"a": np.array([[2.0]]), "b": np.array([[-3.0]])}
    biases = {"a": np.array([-5.0]), "b": np.array([7.0])}
    terms = reference.mlp_terms(weights, biases)
    assert reference.flow(terms, weights) == 2 * 3 + 5 * 3 + 7
    assert reference.flow(terms, weights) == reference.chain_flow(list(weights.values()), list(biases.values()))
    assert reference.scores(terms, weights)["b"].item() == 2 * 3 + 5 * 3
    assert reference.chain_scores(list(weights.values()), list(biases.values()))[1].item() == 2 * 3 + 5 * 3


def test_a_skip_and_a_gate_by_hand():
    weights = {"a": np.array([[2.0]]), "b": np.array([[3.0]])}
    skip = reference.mlp_terms(weights, skips=[(0, 1)])
    assert reference.flow(skip, weights) == (2 + 1) * 3
    assert reference.scores(skip, weights)["a"].item() == 6
    assert reference.max_compression(skip, weights) == 2
    inputs = reference.input_units(1)
    gated = reference.gate_units(*(reference.linear_units(inputs, name, weights[name]) for name in "ab"))[0]
    assert reference.flow(gated, weights) == 6
    assert {name: each.item() for name, each in reference.scores(gated, weights).items()} == {"a": 6, "b": 6}
    squared = reference.gate_units(*[reference.linear_units(inputs, "a", weights["a"])] * 2)[0]
    assert reference.scores(squared, {"a": weights["a"]})["a"].item() == 8


@given(seeds, sizes, st.data())
def test_union_bound(seed, sizes, data):
    weights = random_weights(seed, sizes)
    terms = reference.mlp_terms(weights)
    keys = [(name, i) for name, weight in weights.items() for i in range(weight.size)]
    removed = data.draw(st.lists(st.sampled_from(keys), unique=True))
    before, after, bound = reference.union_bound(terms, weights, removed)
    assert before - after <= bound * (1 + 1e-12)
    assert len(removed) == 1 or after >= 0
    if len(removed) == 1:
        assert before - after == pytest.approx(bound, abs=1e-12 * before)


def test_chain_needs_one_weight_per_layer():
    weights = random_weights(0, [2, 2, 1, 2])
    assert reference.max_compression(reference.mlp_terms(weights), weights) == 8 / 3
    weights["0"][:, 0] = 0
    assert reference.fewest_weights(reference.mlp_terms(weights), weights) == 3


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 1), (1, 1, 2), (1, 2, 4)])
def test_conv_matrix_is_the_convolution(stride, padding, groups):
    layer = nn.Conv2d(4, 4, (3, 2), stride, padding, groups=groups, bias=False).double()
    image = torch.randn(4, 4, 3, dtype=torch.float64)
    weight = layer.weight.detach().numpy()
    matrix, position, shape = reference.conv_matrix(weight, image.shape, stride, padding, groups)
    expected = layer(image[None])[0].detach().numpy()
    assert shape == expected.shape
    np.testing.assert_allclose((matrix @ image.flatten().numpy()).reshape(shape), expected, atol=1e-12)
    np.testing.assert_allclose(matrix[position >= 0], weight.flat[position[position >= 0]])
    np.testing.assert_allclose(
        reference.fold(matrix, position, weight.shape),
        reference.fold(position >= 0, position, weight.shape) * weight,
        atol=1e-12,
    )


def test_top_k_breaks_ties_by_position():
    each = {"a": np.array([[1.0, 3.0], [1.0, 1.0]]), "b": np.array([[1.0, 9.0]])}
    masks = reference.top_k(each, 4)
    assert masks["a"].tolist() == [[True, True], [True, False]]
    assert masks["b"].tolist() == [[False, True]]
    assert reference.top_k(each, 1, alive={"a": masks["b"] < masks["a"], "b": ~masks["b"]})["b"].tolist() == [
        [False, False]
    ]


def test_iterative_synflow_counts_and_nests():
    weights = random_weights(3, [5, 8, 8, 3])
    history = reference.iterative_synflow(weights, compression=32, steps=5)
    counts = [sum(int(mask.sum()) for mask in masks.values()) for masks in history]
    assert counts == [round(128 * 32 ** (-k / 5)) for k in range(1, 6)] == [64, 32, 16, 8, 4]
    for before, after in itertools.pairwise(history):
        assert all((after[name] <= before[name]).all() for name in weights)
    assert reference.chain_flow([weight * history[-1][name] for name, weight in weights.items()]) > 0


def test_schedules_end_at_the_density_wanted():
    schedules = (reference.density_exponential, reference.density_linear, reference.density_linear_in_density)
    for density in schedules:
        assert density(50.0, 10, 10) == pytest.approx(1 / 50)
        steps = [density(50.0, k, 10) for k in range(11)]
        assert steps == sorted(steps, reverse=True)
    assert reference.density_linear(5.0, 1, 10) == 1


def test_erk_densities():
    shapes = {"small": (2, 2), "conv": (16, 8, 3, 3), "big": (64, 128)}
    densities = reference.erk_densities(shapes, 0.1)
    assert densities["small"] == 1
    total = sum(densities[name] * math.prod(shape) for name, shape in shapes.items())
    assert total == pytest.approx(0.1 * sum(math.prod(shape) for shape in shapes.values()))
    assert densities["conv"] / densities["big"] == pytest.approx((30 / 1152) / (192 / 8192))


def mlp_and_data():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    return model, [(torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0]))]


def test_three_ways_to_the_gradient():
    model, data = mlp_and_data()
    names = ["0.weight", "2.weight"]
    objective = reference.Objective(model, names, data)
    layers = {name: model.get_parameter(name).detach().numpy() for name in names}
    biases = {name: model.get_parameter(name.replace("weight", "bias")).detach().numpy() for name in names}
    loss, by_hand = reference.mlp_gradients(layers, biases, *(part.numpy() for part in data[0]))
    assert loss == pytest.approx(objective(objective.vector).item(), rel=1e-12)
    for name, gradient in objective.arrays(objective.gradient()).items():
        np.testing.assert_allclose(gradient, by_hand[name], atol=1e-14)
    np.testing.assert_allclose(objective.gradient_by_differences(), objective.gradient(), atol=1e-8)
    snip = reference.snip(layers, by_hand)
    for name, each in reference.taylor_fo(layers, by_hand).items():
        np.testing.assert_allclose(each, reference.skeletonization(layers, by_hand)[name] ** 2)
        np.testing.assert_allclose(np.sqrt(each), snip[name])


def test_grasp_is_the_change_of_the_gradient_norm():
    """d/dt |g(w + t w e_i)|^2 / 2 = w_i (H g)_i."""
    model, data = mlp_and_data()
    names = ["0.weight", "2.weight"]
    objective = reference.Objective(model, names, data, temperature=200)
    each = np.concatenate([part.ravel() for part in reference.grasp(model, names, data).values()])
    for i in range(0, len(each), 5):
        norms = []
        for sign in (1, -1):
            objective.vector[i] *= 1 + sign * 1e-4
            norms.append((objective.gradient() ** 2).sum().item() / 2)
            objective.vector[i] /= 1 + sign * 1e-4
        assert (norms[0] - norms[1]) / 2e-4 == pytest.approx(each[i], rel=1e-4, abs=1e-16)


def test_obd_over_all_probes_is_exact():
    model = nn.Linear(2, 3, bias=False).double()
    data = [(torch.randn(4, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 1]))]
    probes = [torch.tensor(signs, dtype=torch.float64) for signs in itertools.product((-1, 1), repeat=6)]
    exact = reference.obd(model, ["weight"], data)["weight"]
    np.testing.assert_allclose(reference.obd(model, ["weight"], data, probes)["weight"], exact, atol=1e-14)
    np.testing.assert_array_equal(reference.magnitude({"w": exact})["w"], np.abs(exact))
