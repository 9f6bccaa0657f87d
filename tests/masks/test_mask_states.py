"""State dicts of dense and attached models, in every direction: rewind, load_state and torch's own load_state_dict."""

import copy

import pytest
import torch

from masking import Small, assert_masks_hold, assert_same, batches, random_masks, seen, small, train, zeroed
from synflow.errors import SynflowError
from synflow.masks.attach import attach, attached, bake, density, load_state, rewind


def trained(attach_first=True):
    model, masks = small()
    if attach_first:
        attach(model, masks)
    train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), batches(2))
    return model, masks


def test_state_dict_round_trip_restores_weights_and_masks():
    model, masks = trained()
    other = attach(Small(), random_masks(model, seed=9))
    assert other.load_state_dict(model.state_dict()) == ([], [])
    assert_same(other.state_dict(), model.state_dict())
    assert_masks_hold(other, masks)


@pytest.mark.parametrize("assign", [False, True])
def test_a_dense_checkpoint_goes_into_an_attached_model_and_the_masks_stay(assign):
    dense, masks = trained(attach_first=False)
    model = attach(Small(), masks)
    assert model.load_state_dict(dense.state_dict(), assign=assign) == ([], [])
    assert_same(seen(model), seen(zeroed(dense, masks)))
    assert not any(dict(model.named_parameters())[name][~mask].any() for name, mask in masks.items())


def test_an_attached_checkpoint_does_not_slip_into_a_dense_model():
    model, masks = trained()
    dense = Small()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*weight_synflow_mask"):
        dense.load_state_dict(model.state_dict())
    dense.load_state_dict(model.state_dict(), strict=False)
    assert_same(seen(dense), seen(model))
    with pytest.raises(SynflowError, match=r"use synflow\.load_state"):
        rewind(dense, model.state_dict())
    load_state(dense, model.state_dict())
    assert_masks_hold(dense, masks)
    assert_same(dense.state_dict(), model.state_dict())


@pytest.mark.parametrize("of_attached", [False, True])
@pytest.mark.parametrize("into_attached", [False, True])
def test_load_state_in_all_four_directions(of_attached, into_attached):
    source, masks = trained(of_attached)
    target, other = Small(), random_masks(source, seed=3)
    if into_attached:
        attach(target, other)
    load_state(target, source.state_dict())
    expected = masks if of_attached else other if into_attached else {}
    assert_masks_hold(target, expected)
    assert_same(seen(target), seen(zeroed(source, expected) if not of_attached else source))


def test_a_state_with_two_masks_for_one_tied_weight_is_refused():
    model, masks = trained()
    state = model.state_dict() | {"head.weight_synflow_mask": ~masks["mix.weight"]}
    with pytest.raises(SynflowError, match=r"head\.weight is tied to mix\.weight"):
        load_state(Small(), state)


def test_a_state_with_a_mask_that_is_no_mask_is_refused():
    model, masks = trained()
    state = model.state_dict() | {"mix.weight_synflow_mask": torch.ones(8, 8)}
    with pytest.raises(RuntimeError, match="not a boolean mask"):
        Small.load_state_dict(attach(Small(), masks), state)
    with pytest.raises(SynflowError, match="boolean"):
        load_state(Small(), state)


@pytest.mark.parametrize("from_attached", [False, True])
def test_rewind_is_exact_to_the_bit_and_keeps_the_masks(from_attached):
    model, masks = small()
    if from_attached:
        attach(model, random_masks(model, density=0.9, seed=0))
    start = copy.deepcopy(model.state_dict())
    expected = {name: value for name, value in copy.deepcopy(model).state_dict().items() if "synflow" not in name}
    attach(model, masks)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    train(model, optimizer, batches(2))
    rewind(model, start)
    assert_masks_hold(model, masks)
    for name, value in model.state_dict().items():
        if "synflow" not in name:
            first = "mix.weight" if name == "head.weight" else name
            assert torch.equal(
                value, expected[name].masked_fill(~masks[first], 0) if first in masks else expected[name]
            )
    assert model.norm.num_batches_tracked == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("conv.bias"), "lacks conv.bias"),
        (lambda s: s.update(extra=torch.ones(1)), "unknown extra"),
        (lambda s: s.update({"conv.bias": torch.ones(9)}), r"conv.bias: the state has torch.float32 \(9,\)"),
        (lambda s: s.update({"conv.bias": torch.ones(8).double()}), "conv.bias: the state has torch.float64"),
        (lambda s: s.update({"conv.bias": "text"}), "conv.bias: the state has str"),
    ],
)
@pytest.mark.parametrize("call", [rewind, load_state])
def test_a_state_that_does_not_fit_changes_nothing(call, change, message):
    model, masks = trained()
    state = small(seed=2)[0].state_dict()
    change(state)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(SynflowError, match=message):
        call(model, state)
    assert_same(model.state_dict(), before)
    assert_masks_hold(model, masks)


def test_masks_of_a_state_whose_weights_do_not_fit_are_not_attached():
    source, _ = trained()
    state = source.state_dict() | {"conv.bias": torch.ones(9)}
    target = Small()
    with pytest.raises(SynflowError, match="nothing was loaded"):
        load_state(target, state)
    assert attached(target) == {}


def test_iterative_magnitude_pruning_is_a_loop_of_rewind_and_attach():
    model, _ = small()
    start = copy.deepcopy(model.state_dict())
    masks = {name: torch.ones_like(mask) for name, mask in small()[1].items()}
    for _ in range(3):
        train(model, torch.optim.SGD(model.parameters(), 0.1), batches(2))
        weights = seen(model)
        masks = {
            name: mask & (weights[name].abs() > weights[name][mask].abs().median()) for name, mask in masks.items()
        }
        attach(model, masks)
        rewind(model, start)
    assert density(attached(model)) == pytest.approx(1 / 8, abs=0.01)
    bake(model)
    for name, mask in masks.items():
        assert torch.equal(model.state_dict()[name], start[name].masked_fill(~mask, 0))
