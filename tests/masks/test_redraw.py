"""Laws of redraw: each tensor keeps its values in another order, and kept weights are a fair sample of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import synflow
from masking import assert_same
from synflow.errors import SynflowError
from synflow.masks.attach import attach, attached
from synflow.masks.redraw import redraw
from synflow.pruning.loop import prune
from zoo import ZOO


def network(inner=300):
    return nn.Sequential(nn.Linear(200, inner), nn.ReLU(), nn.Linear(inner, 10))


@given(seed=st.integers(0, 2**40), inner=st.integers(1, 30))
def test_values_stay_in_their_tensor_and_the_global_random_state_is_left_alone(seed, inner):
    model = network(inner)
    masks = {"0.weight": torch.rand(inner, 200) < 0.3}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert redraw(model, masks, seed) is None
    assert torch.equal(torch.random.get_rng_state(), state)
    after = model.state_dict()
    assert not torch.equal(after["0.weight"], before["0.weight"])
    assert torch.equal(after["0.weight"].flatten().sort().values, before["0.weight"].flatten().sort().values)
    for name in after.keys() - masks.keys():
        assert torch.equal(after[name], before[name])


def test_kept_weights_are_a_fair_sample():
    model = network()
    masks = prune(model, torch.ones(1, 200), compression=10, score="magnitude")
    weight, mask = model[0].weight.detach(), masks["0.weight"]
    spread = float(weight.std())
    assert weight[mask].std() > 1.5 * spread
    redraw(model, masks)
    assert float(weight[mask].std()) == pytest.approx(spread, rel=0.05)
    assert float(weight[mask].mean()) == pytest.approx(0.0, abs=0.05 * spread)


def test_the_seed_and_the_name_decide():
    def drawn(seed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        model[1].load_state_dict(model[0].state_dict())
        redraw(model, {f"{i}.weight": torch.ones(8, 8, dtype=torch.bool) for i in (0, 1)}, seed)
        return [model[i].weight.detach().clone() for i in (0, 1)]

    one, same, other = drawn(1), drawn(1), drawn(2)
    assert_same(dict(enumerate(one)), dict(enumerate(same)))
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], one[1])


@pytest.mark.parametrize("name", ["vgg_like", "lstm", "tied_autoencoder", "repeated_module", "bfloat16"])
def test_a_redrawn_network_keeps_its_masks_and_its_path(name):
    model, example, *_ = ZOO[name]()
    masks = prune(model, example, compression=4, steps=5)
    kind = {key: (weight.dtype, weight.shape, id(weight)) for key, weight in model.named_parameters()}
    redraw(model, masks)
    assert {key: (weight.dtype, weight.shape, id(weight)) for key, weight in model.named_parameters()} == kind
    assert synflow.certify(model, masks, example).connected
    attach(model, masks)
    assert_same(attached(model), dict(masks))


def test_an_attached_model_is_refused_and_left_as_it_is():
    model = network(4)
    masks = {"0.weight": torch.rand(4, 200) < 0.5}
    attach(model, masks)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(SynflowError, match=r"0\.weight.*call redraw before attach"):
        redraw(model, masks)
    assert_same(model.state_dict(), before)


def test_masks_that_do_not_fit_are_refused():
    model = network(4)
    with pytest.raises(SynflowError, match="the mask has shape"):
        redraw(model, {"0.weight": torch.ones(3, 3, dtype=torch.bool)})
    with pytest.raises(SynflowError, match="no parameter"):
        redraw(model, {"weight": torch.ones(3, 3, dtype=torch.bool)})
