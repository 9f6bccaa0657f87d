"""Batch norm with a second derivative that holds little."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from synflow.pruning import batch_norm_double_backward as second_order
from synflow.pruning.batch_norm_double_backward import EconomicalNorms
from synflow.support.memory import give_back, peak_memory


def derivatives(x, weight, bias, eps=1e-2):
    """First and second derivatives of something curved behind a batch norm."""
    inputs = [t for t in (x, weight, bias) if t is not None]
    dice = torch.Generator().manual_seed(1)
    y = F.batch_norm(x, None, None, weight, bias, True, 0.1, eps)
    loss = (y * y.sin() * torch.randn(y.shape, generator=dice, dtype=y.dtype)).sum()
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    slope = sum((g * torch.randn(g.shape, generator=dice, dtype=g.dtype)).sum() for g in first)
    return [*first, *torch.autograd.grad(slope, inputs)]


@pytest.mark.parametrize("part", [1, 20, 1 << 18])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (4, 3, 2, 2), (2, 3, 2, 1, 2)])
def test_both_derivatives_are_those_of_torch(shape, affine, part, monkeypatch):
    monkeypatch.setattr(second_order, "PART", part)
    torch.manual_seed(0)
    x = torch.randn(shape).double().requires_grad_()
    weight, bias = (torch.randn(3).double().requires_grad_() if affine else None for _ in range(2))
    expected = derivatives(x, weight, bias)
    with EconomicalNorms():
        found = derivatives(x, weight, bias)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_derivatives_are_those_of_finite_differences():
    torch.manual_seed(0)
    inputs = tuple(torch.randn(s).double().requires_grad_() for s in ((4, 2, 3), (2,), (2,)))
    with EconomicalNorms():
        assert torch.autograd.gradgradcheck(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), inputs)


def test_running_statistics_are_kept_and_evaluation_is_left_to_torch():
    torch.manual_seed(0)
    x = torch.randn(6, 3)
    norms = [nn.BatchNorm1d(3), nn.BatchNorm1d(3)]
    plain = norms[0](x)
    with EconomicalNorms():
        ours = norms[1](x)
    assert type(ours.grad_fn) is not type(plain.grad_fn)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(norms[0].state_dict(), norms[1].state_dict())
    evaluated = norms[1].eval()
    with EconomicalNorms():
        assert type(evaluated(x).grad_fn) is type(plain.grad_fn)


def test_a_batch_of_one_is_refused_in_the_words_of_torch():
    with EconomicalNorms(), pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm1d(3)(torch.randn(1, 3))


def test_the_second_derivative_holds_two_results_and_little_else():
    x = torch.randn(8, 16, 64, 64, requires_grad=True)
    image = x.numel() * x.element_size()

    def second():
        y = F.batch_norm(x, None, None, training=True)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        torch.autograd.grad(first.square().sum(), x)

    plain = peak_memory(second)
    with EconomicalNorms():
        ours = peak_memory(second)
    assert ours <= plain - 3 * image


def test_grasp_holds_about_twice_what_snip_does():
    torch.manual_seed(0)
    parts = [(nn.Conv2d(16 if i else 3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for i in range(6)]
    layers = [layer for part in parts for layer in part]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    data = [(torch.randn(8, 3, 24, 24), torch.randint(4, (8,))) for _ in range(2)]
    snip, grasp = (
        peak_memory(lambda score=score: synflow.score(model, data[0][0][:1], score, data))
        for score in ("snip", "grasp")
    )
    assert grasp <= 2.1 * snip


def test_memory_can_be_given_back_at_any_time():
    kept = torch.ones(1 << 20)
    for _ in range(3):
        torch.ones(1 << 20)
        give_back()
    assert bool(kept.all())
