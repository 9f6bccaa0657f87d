"""Masks hold under every optimizer: pruned weights stay exactly zero, all others move, resuming changes nothing."""

import copy
import io
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

from masking import assert_masks_hold, assert_same, random_masks, seen
from synflow.masks.attach import attach, attached, bake, load_state

OPTIMIZERS = {
    "sgd": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1),
    "nesterov": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd fused": partial(optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1, fused=True),
    "adam": partial(optim.Adam, lr=0.01, weight_decay=0.1),
    "amsgrad": partial(optim.Adam, lr=0.01, amsgrad=True),
    "adamw foreach": partial(optim.AdamW, lr=0.01, weight_decay=0.1, foreach=True),
    "adamw fused": partial(optim.AdamW, lr=0.01, weight_decay=0.1, fused=True),
    "nadam": partial(optim.NAdam, lr=0.01, weight_decay=0.1),
    "radam": partial(optim.RAdam, lr=0.01, weight_decay=0.1),
    "adamax": partial(optim.Adamax, lr=0.01, weight_decay=0.1),
    "adadelta": partial(optim.Adadelta, lr=1.0, weight_decay=0.1),
    "asgd": partial(optim.ASGD, lr=0.05, weight_decay=0.1),
    "rprop": partial(optim.Rprop, lr=0.01),
    "rmsprop": partial(optim.RMSprop, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adagrad": partial(optim.Adagrad, lr=0.05, weight_decay=0.1),
    "adafactor": partial(optim.Adafactor, lr=0.05, weight_decay=0.1),
    "lbfgs": partial(optim.LBFGS, lr=0.1, max_iter=2, line_search_fn="strong_wolfe"),
}
if hasattr(optim, "Muon"):  # torch 2.9 and later
    OPTIMIZERS["muon"] = partial(optim.Muon, lr=0.02, weight_decay=0.1)


def model_for(name, seed=0):
    """A smooth network, so that every weight has a gradient; Muon takes matrices only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bias = name != "muon"
        return nn.Sequential(
            nn.Linear(6, 12, bias), nn.Tanh(), nn.Linear(12, 12, bias), nn.Tanh(), nn.Linear(12, 4, bias)
        )


def step(model, optimizer, index):
    """One step on the batch of this index; works for LBFGS, too."""
    generator = torch.Generator().manual_seed(index)
    inputs, targets = torch.randn(16, 6, generator=generator), torch.randint(4, (16,), generator=generator)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pruned_weights_stay_zero_and_all_others_move(name, made):
    model = model_for(name)
    masks = random_masks(model, density=0.5)
    if made == "before":
        optimizer = OPTIMIZERS[name](model.parameters())
        for index in range(3):
            step(model, optimizer, index)
        attach(model, masks)
    else:
        attach(model, masks)
        optimizer = OPTIMIZERS[name](model.parameters())
    before = seen(model)
    for index in range(20):
        step(model, optimizer, index)
        assert_masks_hold(model, masks)
    for key, weight in seen(model).items():
        assert weight.isfinite().all()
        still = weight == before[key]
        assert torch.equal(still, ~masks[key]) if key in masks else not still.any(), key
    output = model(torch.ones(1, 6))
    bake(model)
    assert torch.equal(model(torch.ones(1, 6)), output)


@pytest.mark.parametrize(
    "name", sorted(OPTIMIZERS.keys() & {"momentum", "adamw fused", "adafactor", "rmsprop", "muon"})
)
def test_a_resumed_run_is_the_same_run_to_the_bit(name):
    model = model_for(name)
    masks = random_masks(model, density=0.5)
    optimizer = OPTIMIZERS[name](attach(model, masks).parameters())
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    file = io.BytesIO()
    for index in range(10):
        if index == 5:
            # The run below goes on from here; this one must not notice that it was saved.
            twin = copy.deepcopy(model)
            state = {"model": twin.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
            torch.save(state, file)
        step(model, optimizer, index)
        schedule.step()

    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = model_for(name, seed=1)
    load_state(resumed, state["model"])
    optimizer = OPTIMIZERS[name](resumed.parameters())
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    for index in range(5, 10):
        step(resumed, optimizer, index)
        schedule.step()
    assert_same(seen(resumed), seen(model))
    assert_same(attached(resumed), masks)


def test_an_optimizer_state_of_the_dense_model_fits_the_attached_one():
    model = model_for("adam")
    names = [name for name, _ in model.named_parameters()]
    optimizer = OPTIMIZERS["adam"](model.parameters())
    step(model, optimizer, 0)
    state = copy.deepcopy(optimizer.state_dict())
    attach(model, random_masks(model))
    assert [name for name, _ in model.named_parameters()] == names
    fresh = OPTIMIZERS["adam"](model.parameters())
    fresh.load_state_dict(state)
    for parameter in model.parameters():
        assert fresh.state[parameter]["exp_avg"].shape == parameter.shape
