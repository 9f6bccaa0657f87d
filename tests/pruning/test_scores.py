"""Each score against its slow twin, in double precision."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import reference
import synflow
from checks import arrays, kept, mlp, nested, same
from synflow.network.private_copy import open_network
from synflow.pruning.scores import SCORES, grasp, obd, snip, traits_of
from zoo import ZOO

NAMES = ["0.weight", "2.weight", "4.weight"]


@pytest.fixture
def case():
    """A ReLU network with biases, one of whose layers is a batch norm, and two batches of different size."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    nn.init.normal_(model[3].running_mean)
    return model, [(torch.randn(n, 4).double(), torch.randint(3, (n,))) for n in (6, 3)]


def close(found, expected):
    assert list(found) == list(expected)
    for name, score in found.items():
        np.testing.assert_allclose(score.numpy(), expected[name], rtol=1e-8, atol=1e-14)


def test_names():
    assert set(SCORES) == {
        "balanced", "random", "magnitude", "snip", "grasp", "synflow", "skeletonization", "taylor_fo", "obd", "force",
        "synflow_l2", "lamp", "phew", "ntk_sap", "px", "prospr",
    }  # fmt: skip
    traits = {name: traits_of(score) for name, score in SCORES.items()}
    assert {name for name, row in traits.items() if row.flow_power} == {"balanced", "synflow", "synflow_l2"}
    assert {name for name, row in traits.items() if row.revives} == {"force"}
    assert {name: row.steps for name, row in traits.items() if row.steps > 1} == {
        "balanced": 100, "synflow": 100, "synflow_l2": 100, "force": 10, "ntk_sap": 100, "px": 100,
    }  # fmt: skip
    free = {name for name, row in traits.items() if not row.needs_data}
    assert free == {"balanced", "synflow", "synflow_l2", "magnitude", "random", "lamp", "phew", "ntk_sap"}


def test_a_score_of_ones_own_in_the_table_is_like_any_other(monkeypatch):
    """A row is all it takes: no data, one step, exact counts; with traits, what they say."""
    from synflow.pruning.scores import traits

    model = mlp(8, 20, 5)
    monkeypatch.setitem(SCORES, "mine", lambda network, masks=None: {n: -w.abs() for n, w in network.weights.items()})
    monkeypatch.setitem(SCORES, "partial", partial(snip, training=False))
    masks = synflow.prune(model, torch.zeros(1, 8), compression=4, score="mine")
    assert (kept(masks), masks.about["method"], masks.about["steps"]) == (65, "mine", 1)
    assert same(masks, synflow.prune(model, torch.zeros(1, 8), compression=4, score=SCORES["mine"]))
    with pytest.raises(synflow.SynflowError, match="'partial' needs data"):
        synflow.prune(model, torch.zeros(1, 8), compression=4, score="partial")
    data = [(torch.randn(4, 8), torch.randint(5, (4,)))]
    assert kept(synflow.prune(model, torch.zeros(1, 8), compression=4, score="partial", data=data)) == 65
    monkeypatch.setitem(SCORES, "mine", traits(needs_data=True, steps=3)(lambda network, masks=None: network.weights))
    with pytest.raises(synflow.SynflowError, match="'mine' needs data"):
        synflow.prune(model, torch.zeros(1, 8), compression=4, score="mine")
    assert synflow.prune(model, torch.zeros(1, 8), compression=4, score="mine", data=data).about["steps"] == 3


def test_a_score_with_fixed_arguments_is_named_with_them():
    data = [(torch.randn(4, 8), torch.randint(5, (4,)))]
    fixed = partial(partial(snip, training=False))
    masks = synflow.prune(mlp(8, 20, 5), torch.zeros(1, 8), compression=4, score=fixed, data=data)
    assert masks.about["method"] == "snip(training=False)"


@pytest.mark.parametrize("probes", [0, 1.5])
def test_obd_needs_a_whole_number_of_probes(probes):
    with pytest.raises(synflow.SynflowError, match=f"obd: probes must be a whole number of at least 1, got {probes}"):
        synflow.score(mlp(8, 20, 5), torch.zeros(1, 8), partial(obd, probes=probes), [])


def test_traits_outlive_fixed_arguments_and_scores_of_data_have_both_modes(case):
    model, data = case
    for name, score in SCORES.items():
        assert traits_of(partial(partial(score))) == traits_of(score)
        if traits_of(score).needs_data:
            found = synflow.score(model, torch.zeros(1, 4), partial(score, training=False), data)
            assert all(torch.isfinite(each).all() for each in found.values()), name


@pytest.mark.parametrize("power", [1, 2])
def test_synflow_is_the_matrix_product(power):
    model = mlp(4, 6, 5, 3, dtype=torch.float64)
    found = synflow.score(model, torch.randn(1, 4), "synflow" if power == 1 else "synflow_l2")
    weights = arrays(dict(model.named_parameters()))
    expected = reference.chain_scores(list(weights.values()), power=power)
    unit = expected[0].sum() / found["0.weight"].sum().item()
    assert np.log2(unit) == pytest.approx(round(np.log2(unit)), abs=1e-9)
    close({name: score * unit for name, score in found.items()}, dict(zip(weights, expected, strict=True)))


def test_magnitude(case):
    model, _ = case
    found = synflow.score(model, torch.zeros(1, 4), "magnitude")
    weights = arrays({name: model.get_parameter(name) for name in NAMES})
    close(found, reference.magnitude(weights))


@pytest.mark.parametrize("name", ["snip", "skeletonization", "taylor_fo"])
def test_first_order_scores_are_summed_over_batches_in_train_mode(case, name):
    model, data = case
    weights = arrays({key: model.get_parameter(key) for key in NAMES})
    model.train()
    objective = reference.Objective(model, NAMES, data)
    gradients = objective.arrays(objective.gradient() * len(data))
    model.eval()
    close(synflow.score(model, torch.zeros(1, 4), name, data), getattr(reference, name)(weights, gradients))


def test_first_order_scores_by_hand():
    model = mlp(4, 5, 3, bias=True, dtype=torch.float64)
    data = [(torch.randn(6, 4).double(), torch.randint(3, (6,)))]
    weights = arrays({name: p for name, p in model.named_parameters() if "weight" in name})
    biases = {name: model.get_parameter(name.replace("weight", "bias")).detach().numpy() for name in weights}
    _, gradients = reference.mlp_gradients(weights, biases, *(part.numpy() for part in data[0]))
    close(synflow.score(model, torch.zeros(1, 4), "snip", data), reference.snip(weights, gradients))


def test_evaluation_mode_on_request(case):
    model, data = case
    model.eval()
    objective = reference.Objective(model, NAMES, data)
    gradients = objective.arrays(objective.gradient() * len(data))
    weights = arrays({key: model.get_parameter(key) for key in NAMES})
    close(snip(open_network(model, torch.zeros(1, 4), data=data), training=False), reference.snip(weights, gradients))


def test_grasp_is_the_whole_hessian_times_the_gradient(case):
    model, data = case
    model.train()
    expected = reference.grasp(model, NAMES, data)
    found = synflow.score(model, torch.zeros(1, 4), "grasp", data)
    close(found, {name: score * len(data) ** 2 for name, score in expected.items()})
    network = open_network(model, torch.zeros(1, 4), data=data)
    hot = grasp(network, temperature=1.0)
    close(hot, {name: score * 4 for name, score in reference.grasp(model, NAMES, data, temperature=1.0).items()})


def test_both_passes_of_grasp_see_the_same_batches_and_the_same_dropout():
    """With dropout in between, H and g must belong to one loss: the score is then d(|g|^2 / 2) along each weight."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()

    def shuffled():
        for at in torch.randperm(3):
            yield torch.randn(5, 4).double() + at, torch.randint(3, (5,))

    network = open_network(model, torch.zeros(1, 4), data=shuffled(), seed=3)
    found = grasp(network, temperature=1.0)
    again = grasp(network, temperature=1.0)
    assert same(found, again)

    def half_square(scale):
        from synflow.pruning.gradients import loss_gradients

        original = network.weights["0.weight"]
        network.weights["0.weight"] = original * scale
        total = sum((g**2).sum() for g in loss_gradients(network, None, temperature=1.0).values()) / 2
        network.weights["0.weight"] = original
        return total.item()

    slope = (half_square(1 + 1e-5) - half_square(1 - 1e-5)) / 2e-5
    assert found["0.weight"].sum().item() == pytest.approx(slope, rel=1e-5)


def test_obd_is_exact_where_the_hessian_is_diagonal():
    model = nn.Linear(3, 1, bias=False).double()
    data = [(torch.diag(torch.tensor([1.0, 2.0, 3.0])).double(), torch.zeros(3, 1).double())]
    found = synflow.score(model, torch.zeros(1, 3), "obd", data, loss=nn.functional.mse_loss)["weight"]
    diagonal = 2 / 3 * torch.tensor([[1.0, 4.0, 9.0]]).double()
    torch.testing.assert_close(found, diagonal * model.weight.detach() ** 2)


def test_obd_converges_to_the_diagonal(case):
    model, data = case
    model.train()
    expected = reference.obd(model, NAMES, data)
    network = open_network(model, torch.zeros(1, 4), data=data)
    found = obd(network, probes=400)
    scale = max(np.abs(each).max() for each in expected.values())
    for name, score in found.items():
        np.testing.assert_allclose(score.numpy() / 2, expected[name], atol=0.25 * scale)
    errors = [np.abs(score.numpy() / 2 - expected[name]).mean() for name, score in found.items()]
    rough = [np.abs(score.numpy() / 2 - expected[name]).mean() for name, score in obd(network, probes=4).items()]
    assert sum(errors) < sum(rough) / 3


def test_force_sees_the_pruned_network_but_all_the_weights(case):
    model, data = case
    masks = {name: torch.rand_like(model.get_parameter(name)) > 0.5 for name in NAMES}
    pruned = nn.Sequential(*model)
    weights = arrays({name: model.get_parameter(name) for name in NAMES})
    found = synflow.score(model, torch.zeros(1, 4), "force", data, masks=masks)
    dense = {name: model.get_parameter(name).detach().clone() for name in NAMES}
    for name in NAMES:
        pruned.get_parameter(name).data *= masks[name]
    pruned.train()
    objective = reference.Objective(pruned, NAMES, data)
    gradients = objective.arrays(objective.gradient() * len(data))
    for name, weight in dense.items():
        pruned.get_parameter(name).data = weight
    close(found, reference.snip(weights, gradients))
    assert any(bool((found[name][~masks[name]] > 0).any()) for name in NAMES)


# NTK-SAP draws new weights from all old ones, and in ProsPr a weight that is zero takes part in the training.
@pytest.mark.parametrize("name", sorted(set(SCORES) - {"random", "force", "ntk_sap", "prospr"}))
def test_masked_weights_score_zero_and_do_not_take_part(case, name):
    model, data = case
    masks = {key: torch.rand_like(model.get_parameter(key)) > 0.4 for key in NAMES}
    found = synflow.score(model, torch.zeros(1, 4), name, data, masks=masks)
    zeroed = nn.Sequential(*model)
    before = {key: zeroed.get_parameter(key).detach().clone() for key in NAMES}
    for key in NAMES:
        zeroed.get_parameter(key).data *= masks[key]
    expected = synflow.score(zeroed, torch.zeros(1, 4), name, data)
    for key in NAMES:
        zeroed.get_parameter(key).data = before[key]
        assert not found[key][~masks[key]].any()
        torch.testing.assert_close(found[key], expected[key], rtol=1e-10, atol=1e-300)


def test_random_scores_come_from_the_seed_alone():
    model = mlp(40, 50, 30)
    first = synflow.score(model, torch.zeros(1, 40), "random", seed=5)
    torch.manual_seed(99)
    assert same(first, synflow.score(model, torch.zeros(1, 40), "random", seed=5))
    masks = {name: torch.rand_like(score) > 0.5 for name, score in first.items()}
    assert same(first, synflow.score(model, torch.zeros(1, 40), "random", seed=5, masks=masks))
    assert same(first, synflow.score(model.bfloat16(), torch.zeros(1, 40), "random", seed=5))
    assert not same(first, synflow.score(model, torch.zeros(1, 40), "random", seed=6))
    values = torch.cat([score.flatten() for score in first.values()])
    assert 0 <= values.min() <= values.max() < 1
    assert values.mean().item() == pytest.approx(0.5, abs=0.02)
    assert len(values.unique()) > 0.99 * len(values)


@pytest.mark.parametrize("name", sorted(set(SCORES) - {"random"}))
def test_the_seed_decides_nothing_but_probes_and_dropout(case, name):
    model, data = case
    one, two = (synflow.score(model, torch.zeros(1, 4), name, data, seed=seed) for seed in (1, 2))
    assert same(one, two) == (name not in ("obd", "phew", "ntk_sap"))


def test_only_force_revives(case):
    model, data = case
    for name in sorted(SCORES):
        steps = list(synflow.iterate(model, torch.zeros(1, 4), compression=10, score=name, data=data, steps=6))
        chain = [nested(after.masks, before.masks) for before, after in itertools.pairwise(steps)]
        assert all(chain) or name == "force"
        assert [kept(step.masks) for step in steps] == [step.kept for step in steps]
    sample = ZOO["mlp"]()
    steps = list(synflow.iterate(sample.model, sample.example, compression=20, score="force", data=sample.data))
    assert len(steps) == 10
    assert not all(nested(after.masks, before.masks) for before, after in itertools.pairwise(steps))
