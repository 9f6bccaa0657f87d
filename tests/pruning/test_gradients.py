"""Gradients and Hessian products of a loss, and the saliency of any objective."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from blocks import CausalAttention
from checks import Function, mlp, untouched
from synflow.network.private_copy import open_network
from synflow.pruning.gradients import hessian_products, loss_gradients, masked_weights

X = torch.zeros(1, 3)
DATA = [(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1]))]


def test_saliency_is_gradient_times_weight():
    weights = {"a": torch.tensor([2.0, -1.0]), "b": torch.tensor([3.0, 4.0]), "unused": torch.ones(2)}
    found = synflow.saliency(lambda w: (w["a"] * w["b"]).sum() + w["a"].pow(2).sum(), weights)
    assert found["a"].tolist() == [6 + 8, -4 + 2]
    assert found["b"].tolist() == [6, -4]
    assert found["unused"].tolist() == [0, 0]
    assert not weights["a"].requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_saliency_works_without_gradients_around_it(mode):
    with mode():
        found = synflow.saliency(lambda w: w["a"].sum(), {"a": torch.tensor([2.0, -1.0])})
    assert found["a"].tolist() == [2, -1]


@pytest.mark.parametrize("objective", [lambda w: w["a"], lambda _: 3.0])
def test_an_objective_must_be_one_number(objective):
    with pytest.raises(synflow.SynflowError, match="must return a tensor with one element"):
        synflow.saliency(objective, {"a": torch.ones(2)})


def test_saliency_of_a_loss_is_skeletonization_with_the_other_sign():
    model = mlp(3, 5, 2, dtype=torch.float64)
    data = [(x.double(), y) for x, y in DATA]

    def objective(weights):
        return F.cross_entropy(torch.func.functional_call(model, weights, (data[0][0],)), data[0][1])

    found = synflow.saliency(objective, dict(model.named_parameters()))
    expected = synflow.score(model, X, "skeletonization", data)
    for name, score in expected.items():
        torch.testing.assert_close(found[name], -score)


@pytest.mark.parametrize("score", ["grasp", "obd", "prospr"])
def test_an_operation_without_a_second_derivative_is_named(score):
    model = nn.Sequential(nn.Linear(3, 2), nn.Hardsigmoid())
    message = f"score '{score}' needs second derivatives, but torch has none here: .*hardsigmoid.* such as 'snip'"
    with pytest.raises(synflow.SynflowError, match=message):
        synflow.score(model, X, score, DATA)
    assert synflow.score(model, X, "snip", DATA).keys() == synflow.prunable(model).keys()


def test_weights_that_the_loss_does_not_see_have_no_gradient():
    model = Function(lambda self, x: self.used(x), used=nn.Linear(3, 2), idle=nn.Linear(3, 2))
    for score in ("snip", "grasp", "obd"):
        found = synflow.score(model, X, score, DATA)
        assert not found["idle.weight"].any()
        assert found["used.weight"].any()


def test_a_linear_loss_has_no_curvature():
    model = nn.Linear(3, 2)
    network = open_network(model, X, data=DATA, loss=lambda output, _: output.sum())
    ones = {"weight": torch.ones(2, 3)}
    assert not hessian_products(network, None, ones)["weight"].any()


def test_fused_attention_has_a_second_derivative():
    model = nn.Sequential(CausalAttention(1, 3), nn.Flatten(), nn.Linear(6, 2))
    data = [(torch.randn(4, 2, 3), torch.tensor([0, 1, 0, 1]))]
    assert any(score.any() for score in synflow.score(model, torch.zeros(1, 2, 3), "grasp", data).values())


def test_gradients_add_up_over_batches_and_reach_masked_weights():
    model = mlp(3, 4, 2, dtype=torch.float64)
    first, second = ([(torch.randn(2, 3).double(), torch.tensor([0, 1]))] for _ in range(2))
    masks = {name: torch.rand_like(p) > 0.5 for name, p in model.named_parameters()}
    one, two, both = (loss_gradients(open_network(model, X, data=d), masks) for d in (first, second, first + second))
    for name in both:
        torch.testing.assert_close(both[name], one[name] + two[name])
        assert both[name][~masks[name]].any()


def test_masked_weights_are_fresh_and_at_least_single():
    model = nn.Linear(3, 2).bfloat16()
    network = open_network(model, X)
    weights = masked_weights(network, {"weight": torch.tensor([[True, False, True], [False, False, True]])})
    assert weights["weight"].dtype == torch.float32
    assert weights["weight"].count_nonzero() == 3
    masked_weights(network, None)["weight"].zero_()
    assert network.weights["weight"].any()


def test_half_precision_models_are_scored_in_single():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).half()
    data = [(x.half(), y) for x, y in DATA]
    with untouched(model):
        found = synflow.score(model, X, "snip", data)
    assert all(score.dtype == torch.float32 for score in found.values())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda output, _: output.sum(1), r"one element, got a tensor of shape \(4,\)"),
        (lambda *_: 1.0, "one element, got float"),
        (lambda output, _: output.sum() * float("nan"), "the loss is nan on batch 0 of 1"),
        (lambda output, _: output.sum() * float("inf"), r"the loss is (-?inf|nan) on batch 0 of 1"),
        (lambda output, _: output.detach().sum(), "the loss does not depend on any prunable weight"),
    ],
)  # fmt: skip
def test_losses_that_cannot_be_used(loss, message):
    model = mlp(3, 4, 2)
    with untouched(model), pytest.raises(synflow.SynflowError, match=message):
        synflow.score(model, X, "snip", DATA, loss=loss)


def test_the_failing_batch_is_named():
    model = mlp(3, 4, 2)
    data = [*DATA, (torch.full((4, 3), torch.nan), DATA[0][1])]
    with pytest.raises(synflow.SynflowError, match="the loss is nan on batch 1 of 2"):
        synflow.score(model, X, "snip", data)


@pytest.mark.parametrize("score", ["snip", "grasp", "prospr", "obd"])
def test_data_and_models_made_in_inference_mode(score):
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        data = [(torch.randn(8, 6), torch.randint(3, (8,)))]
        masks = synflow.prune(model, data[0][0], compression=4, score=score, data=data)
    again = synflow.prune(model, data[0][0], compression=4, score=score, data=data)
    assert all(torch.equal(masks[name], again[name]) for name in masks)


def test_errors_of_the_model_and_the_loss_say_where_they_came_from():
    model = Function(lambda self, x: {"logits": self.layer(x)}, layer=nn.Linear(3, 2))
    with pytest.raises(synflow.SynflowError, match="the loss fails on batch 0 of 1, for which the model returned dict"):
        synflow.prune(model, X, compression=2, score="snip", data=DATA)
    masks = synflow.prune(
        model, X, compression=2, score="snip", data=DATA, loss=lambda y, t: F.cross_entropy(y["logits"], t)
    )
    assert masks["layer.weight"].sum() == 3
    with pytest.raises(synflow.SynflowError, match="Linear fails on batch 0 of 1: RuntimeError: mat1 and mat2"):
        synflow.prune(nn.Linear(3, 2), X, compression=2, score="snip", data=[(torch.ones(4, 5), DATA[0][1])])


def test_saliency_of_no_weights_is_refused():
    with pytest.raises(synflow.SynflowError, match=r"weights must be a dict of tensors by name, got \{\}"):
        synflow.saliency(lambda weights: torch.ones(1), {})
