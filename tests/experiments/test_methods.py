"""From a config to masks: every score of the table, also one that a user adds, with its own data and steps."""

import pytest

import synflow
from synflow.experiments.configs import Config
from synflow.experiments.methods import make_masks, make_model


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
