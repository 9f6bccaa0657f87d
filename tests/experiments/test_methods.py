"""From a config to masks: every score of the table, also one that a user adds, with its own data and steps."""

import pytest
import torch
from torch.nn import functional

import synflow
from synflow.experiments.configs import Config
from synflow.experiments.data import scoring_batches
from synflow.experiments.methods import data_of, make_masks, make_model


def masks_of(**settings):
    config = Config(model="fc", dataset="digits", compression=5.0, images=20, **settings)
    return make_masks(config, make_model(config), None)


@pytest.mark.parametrize("method", ["lamp", "phew", "ntk_sap", "px", "prospr"])
@pytest.mark.parametrize("deviation", [{}, {"scoring": "eval"}, {"scope": "igq"}])
def test_scores_of_the_table_get_what_they_need(method, deviation):
    assert synflow.density(masks_of(method=method, steps=2, **deviation)) == pytest.approx(0.2, rel=1e-3)


def test_an_inverted_score_takes_as_many_steps_as_the_score():
    assert len(masks_of(method="synflow", ablation="invert").steps) == 100
    assert len(masks_of(method="snip", ablation="invert").steps) == 1


def test_a_score_that_is_added_later_is_known(monkeypatch):
    mine = lambda network, masks=None: {name: weight.abs() for name, weight in network.weights.items()}  # noqa: E731
    with pytest.raises(synflow.SynflowError, match="no method 'mine'"):
        masks_of(method="mine")
    monkeypatch.setitem(synflow.SCORES, "mine", mine)
    expected = masks_of(method="magnitude")
    assert all((mask == expected[name]).all() for name, mask in masks_of(method="mine").items())


def test_the_first_version_of_grasp_by_its_formula():
    config = Config(model="fc", dataset="digits", compression=5.0, images=20, method="grasp", scoring="eval")
    model = make_model(config).eval()
    (inputs, targets), *more = scoring_batches(data_of(config, None), 20, seed=0)
    assert not more
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    loss = functional.cross_entropy(model(inputs), targets)  # no temperature
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    products = torch.autograd.grad(sum(g.square().sum() / 2 for g in gradients), weights)
    scores = torch.cat([(-h * w).flatten() for h, w in zip(products, weights, strict=True)])  # the highest are kept
    masks = make_masks(config, make_model(config), None)
    found = torch.cat([mask.flatten() for mask in masks.values()])
    wanted = torch.zeros_like(found, dtype=torch.bool).index_fill_(0, scores.topk(int(found.sum())).indices, True)
    assert (found.bool() != wanted).sum() <= 2  # float32: weights at the edge may differ
    assert (found.bool() != (scores <= scores.kthvalue(int(found.sum())).values)).sum() > 100  # the sign matters
