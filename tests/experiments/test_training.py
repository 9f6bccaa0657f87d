"""Recipes and the training loop: rates by hand, masks that hold, resumed runs equal to the bit."""

import dataclasses
import math

import pytest
import torch

import synflow
from synflow.errors import SynflowError
from synflow.experiments import data, models, training
from synflow.experiments.recipes import Recipe, paper_recipe, rate

SHAPE = (1, 8, 8)
QUICK = Recipe(epochs=3, lr=0.05, batch_size=64, lr_schedule="constant")


def network(seed=0, name="fc"):
    torch.manual_seed(seed)
    return models.build(name, input_shape=SHAPE)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


@pytest.mark.parametrize(
    ("recipe", "moments"),
    [
        (Recipe(lr=0.1, drops=(60, 120), epochs=160), {0: 0.1, 59.99: 0.1, 60: 0.01, 120: 0.001, 159: 0.001}),
        (Recipe(lr=0.2, lr_schedule="cosine", epochs=10), {0: 0.2, 5: 0.1, 10: 0.0}),
        (Recipe(lr=1.0, lr_schedule="one_cycle", epochs=10), {0: 0.04, 1.5: 0.52, 3: 1.0, 6.5: 0.5, 10: 1e-4}),
        (Recipe(lr=0.1, lr_schedule="constant", warmup=2), {1: 0.05, 2: 0.1, 50: 0.1}),
        (Recipe(lr=0.1, lr_factor=3, lr_schedule="constant"), {0: 0.3}),
    ],
)
def test_rates(recipe, moments):
    for epoch, wanted in moments.items():
        assert rate(recipe, epoch) == pytest.approx(wanted, abs=1e-9)


def test_the_papers_table():
    vgg, resnet = paper_recipe("vgg16_bn", "cifar100"), paper_recipe("resnet18", "cifar10")
    assert (vgg.epochs, vgg.lr, vgg.drops, vgg.drop_factor, vgg.weight_decay) == (160, 0.1, (60, 120), 0.1, 1e-4)
    assert (resnet.lr, resnet.drop_factor, resnet.weight_decay) == (0.01, 0.2, 5e-4)
    assert paper_recipe("vgg11_bn", "tiny-imagenet").drops == (30, 60, 80)
    assert paper_recipe("vgg16_bn", "cifar100", published=True).lr_factor == 3
    assert vgg.batch_size == 128


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "lion"}, "no optimizer 'lion'; choose from adam, adamw, momentum, sgd"),
        ({"lr_schedule": "x"}, "choose from constant, cosine, one_cycle, step"),
        ({"precision": "int8"}, "no precision"),
        ({"lr": 0.0}, "above 0"),
        ({"batch_size": 1}, "batch_size must be at least 2, got 1"),
    ],
)
def test_bad_recipes(settings, message):
    with pytest.raises(SynflowError, match=message):
        Recipe(**settings)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_networks_learn(digits, optimizer):
    lr = {"sgd": 0.05, "momentum": 0.02, "adam": 0.002}[optimizer]
    recipe = dataclasses.replace(
        QUICK, epochs=8, optimizer=optimizer, lr=lr, lr_schedule="cosine", label_smoothing=0.05
    )
    history = training.train(network(), digits, recipe)
    assert history[-1].top1 > 75
    assert history[-1].top5 > 95
    assert history[-1].train_loss < history[0].train_loss


def test_evaluation_counts_right_answers(digits):
    class Oracle(torch.nn.Module):
        def forward(self, images):
            same = (data.normalise(digits.test_images, digits).flatten(1) - images.flatten(1)[:, None]).abs().sum(2)
            return torch.nn.functional.one_hot(digits.test_labels[same.argmin(1)], 10).float() * 2

    found = training.evaluate(Oracle(), digits)
    assert found["top1"] == found["top5"] == 100
    # In float32 a loss of 1e-3 would be off by 2e-4 of itself: it is a difference of numbers around 9.
    assert found["test_loss"] == pytest.approx(math.log(1 + 9 * math.exp(-2)), rel=1e-6)


@pytest.mark.parametrize("stop", [1, 2])
def test_a_resumed_run_is_the_undisturbed_one_to_the_bit(digits, stop):
    recipe = dataclasses.replace(QUICK, lr_schedule="cosine", warmup=0.5)

    def states(model, state=None):
        for _, snapshot in training.train_epochs(model, digits, recipe, seed=4, state=state):
            yield snapshot()

    whole = network()
    *_, last = states(whole)
    half = network()
    for state in states(half):
        if state["epoch"] == stop:
            break
    torch.manual_seed(99)
    resumed = network(seed=1)
    *_, end = states(resumed, state)
    assert end["epoch"] == last["epoch"] == 3
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_the_callers_random_numbers_are_left_alone(digits):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    training.train(network_for(5), digits, dataclasses.replace(QUICK, epochs=1))
    assert torch.equal(torch.rand(3), wanted)


def network_for(seed):
    """A network made without touching the global generator."""
    with torch.random.fork_rng([]):
        return network(seed)


def test_compact_training_equals_masked_training(digits):
    recipe = dataclasses.replace(QUICK, weight_decay=1e-3)
    masks = synflow.prune(network(), torch.ones(1, *SHAPE), compression=20)
    masked = synflow.attach(network(), masks)
    small = synflow.compact(network(), torch.ones(1, *SHAPE), masks)
    one, two = training.train(masked, digits, recipe), training.train(small, digits, recipe)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in masked.parameters())
    for left, right in zip(one, two, strict=True):
        assert left.train_loss == pytest.approx(right.train_loss, rel=1e-4)
        assert left.top1 == pytest.approx(right.top1, abs=0.6)
    synflow.bake(masked)
    for name, mask in masks.items():
        assert not masked.get_parameter(name)[~mask].any()


def test_a_collapsed_network_trains_to_chance(digits):
    model = network()
    masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in synflow.prunable(model).items()}
    masks[list(masks)[2]][:] = False
    history = training.train(synflow.attach(model, masks), digits, QUICK)
    assert history[-1].top1 == pytest.approx(10, abs=0.01)


def test_bfloat16_and_channels_last(digits):
    recipe = dataclasses.replace(QUICK, epochs=2, precision="bfloat16", channels_last=True)
    model = network(name="conv")
    history = training.train(model, digits, recipe)
    assert history[-1].top1 > 60
    assert model[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[2].weight.dtype == torch.float32


def test_evaluation_every_second_epoch_and_at_the_end(digits):
    history = training.train(network(), digits, dataclasses.replace(QUICK, evaluate_every=2))
    assert [epoch.top1 is None for epoch in history] == [True, False, False]


def test_a_loss_that_blows_up_says_so(digits):
    with pytest.raises(SynflowError, match=r"the training loss is (nan|inf) in epoch \d+ at learning rate"):
        training.train(network(), digits, dataclasses.replace(QUICK, lr=1e6))


@pytest.mark.slow
def test_compiled_training(digits):
    (first, _), *_ = training.train_epochs(network(), digits, dataclasses.replace(QUICK, epochs=1), compile=True)
    plain = training.train(network(), digits, dataclasses.replace(QUICK, epochs=1))[0]
    assert first.train_loss == pytest.approx(plain.train_loss, rel=1e-3)
