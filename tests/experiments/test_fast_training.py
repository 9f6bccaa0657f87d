"""Sparse loops over groups of images: outputs, gradients and running statistics as torch's own in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from synflow.experiments import data, training
from synflow.experiments.recipes import Recipe
from synflow.models.built_in import Residual

pytest.importorskip("numba")


def conv_norm(inputs, outputs, kernel=3, stride=1, padding=1):
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.BatchNorm2d(outputs)]


def vgg(channels=3, classes=4):
    return nn.Sequential(
        *conv_norm(channels, 7), nn.ReLU(), nn.MaxPool2d(2), *conv_norm(7, 5, 5, 1, 2), nn.ReLU(inplace=True),
        nn.Sequential(*conv_norm(5, 6, 1, 1, 0), nn.Identity()), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, classes),
    )  # fmt: skip


def resnet():
    same = Residual(nn.Sequential(*conv_norm(6, 5), nn.ReLU(), *conv_norm(5, 6)), nn.Identity())
    down = Residual(
        nn.Sequential(*conv_norm(6, 5, 3, 2), nn.ReLU(), *conv_norm(5, 9)), nn.Sequential(*conv_norm(6, 9, 1, 2, 0))
    )
    return nn.Sequential(
        *conv_norm(3, 6), nn.ReLU(), same, down, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(9, 4)
    )


def pruned(make, density=0.4):
    """A masked network whose batch norms have lived: one gain is negative, one is zero."""
    torch.manual_seed(1)
    model = make()
    masks = {name: torch.rand_like(weight) < density for name, weight in synflow.prunable(model).items()}
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        nn.init.zeros_(norm.weight[:1])
    return synflow.attach(model, masks)


def gradients(model, runner, images, labels):
    loss = F.cross_entropy(runner(images), labels)
    loss.backward()
    return {name: p.grad.double() for name, p in model.named_parameters()} | {"loss": loss.detach().double()}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [64, 7])
@pytest.mark.parametrize("make", [vgg, resnet])
def test_outputs_gradients_and_statistics(make, batch, threads, monkeypatch):
    from synflow.experiments.fast import operations

    monkeypatch.setattr(operations, "PARALLEL", 1)  # threads for the smallest network
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model, images, labels = pruned(make), torch.randn(batch, 3, 8, 10), torch.randint(4, (batch,))
    exact = copy.deepcopy(model).double()
    runner = training.fast_form(model, (3, 8, 10))
    assert runner is not None
    wanted, found = gradients(exact, exact, images.double(), labels), gradients(model, runner, images, labels)
    largest = max(float(value.abs().max()) for value in wanted.values())
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6 * largest, msg=name)
    for (name, wanted_buffer), (_, buffer) in zip(exact.named_buffers(), model.named_buffers(), strict=True):
        torch.testing.assert_close(buffer.double(), wanted_buffer.double(), rtol=1e-5, atol=1e-6, msg=name)
    runner.eval(), exact.eval()
    with torch.no_grad():
        torch.testing.assert_close(runner(images).double(), exact(images.double()), rtol=1e-4, atol=1e-5)


def test_training_is_the_same_up_to_rounding_and_resumes_to_the_bit():
    digits = data.load("digits", train_per_class=32)
    plain = pruned(lambda: vgg(1, 10))
    quick, again, recipe = copy.deepcopy(plain), copy.deepcopy(plain), Recipe(epochs=2, lr=0.01, batch_size=64)
    assert training.fast_form(quick, digits.shape) is not None
    history = [list(training.train_epochs(m, digits, recipe, fast=fast)) for m, fast in ((plain, False), (quick, True))]
    for (slow, _), (fast, _) in zip(*history, strict=True):
        assert fast.train_loss == pytest.approx(slow.train_loss, rel=1e-4)
    first, snapshot = next(iter(training.train_epochs(again, digits, recipe)))
    assert first.train_loss == history[1][0][0].train_loss
    resumed = copy.deepcopy(again)
    list(training.train_epochs(resumed, digits, recipe, state=copy.deepcopy(snapshot())))
    for name, value in quick.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def hooked():
    model = pruned(vgg)
    model[1].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: pruned(vgg, 1.0), "dense networks are faster by torch's own layers"),
        (lambda: pruned(vgg).double(), "float64"),
        (hooked, "a hook wants to be called"),
        (lambda: nn.Sequential(pruned(vgg), nn.Softplus()), "an unknown layer"),
    ],
)
def test_networks_without_a_fast_form(make, why):
    assert training.fast_form(make(), (3, 8, 10)) is None, why


def test_pruned_weights_stay_zero():
    model = pruned(resnet)
    runner, optimiser = training.fast_form(model, (3, 8, 10)), torch.optim.SGD(model.parameters(), 0.1, 0.9)
    for _ in range(3):
        optimiser.zero_grad()
        gradients(model, runner, torch.randn(8, 3, 8, 10), torch.randint(4, (8,)))
        optimiser.step()
    for name, mask in synflow.attached(model).items():
        assert not dict(model.named_parameters())[name][~mask].any()
