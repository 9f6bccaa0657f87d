"""VGG-16 for CIFAR-100 at 10x to 10^6: densities layer by layer, against what probability says and the paper shows."""

import math

import numpy as np
import pytest
import torch

import synflow
from checks import kept
from synflow.models.built_in import build

N = 14_761_664
EXAMPLE = torch.empty(1, 3, 32, 32)
COMPRESSIONS = [10, 10**2, 10**3, 10**4, 10**5, 10**6]


@pytest.fixture(scope="module")
def vgg():
    torch.manual_seed(0)
    return build("vgg16_bn", classes=100)


def counts(masks):
    return np.array([int(mask.sum()) for mask in masks.values()])


def within_noise(found, expected):
    """Five standard deviations of a count, and a few weights where next to none are expected."""
    return (np.abs(found - expected) <= 5 * np.sqrt(expected) + 3).all()


def test_the_network_is_the_papers(vgg):
    weights = synflow.prunable(vgg)
    assert len(weights) == 14
    assert sum(weight.numel() for weight in weights.values()) == N
    assert synflow.max_compression(vgg, EXAMPLE) == N / 14


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_random_keeps_the_same_density_everywhere(vgg, compression):
    masks = synflow.prune(vgg, EXAMPLE, compression=compression, score="random", seed=1)
    sizes = np.array([mask.numel() for mask in masks.values()])
    assert kept(masks) == round(N / compression)
    assert within_noise(counts(masks), sizes / compression)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_magnitude_keeps_the_tail_of_each_layers_normal_distribution(vgg, compression):
    """Kaiming-normal weights have deviation sqrt(2 / fan-in): |w| > t leaves erfc(t / deviation / sqrt 2) of them."""
    weights = synflow.prunable(vgg)
    sizes = np.array([weight.numel() for weight in weights.values()])
    deviations = np.array([math.sqrt(2 / (weight.numel() / weight.shape[0])) for weight in weights.values()])
    low, high = 0.0, 10.0
    for _ in range(200):
        middle = (low + high) / 2
        tails = np.array([math.erfc(middle / deviation / math.sqrt(2)) for deviation in deviations])
        low, high = (middle, high) if (sizes * tails).sum() > N / compression else (low, middle)
    masks = synflow.prune(vgg, EXAMPLE, compression=compression, score="magnitude")
    assert kept(masks) == round(N / compression)
    assert within_noise(counts(masks), sizes * tails)
    # The paper's figure: from 1000x on, magnitude pruning has emptied the wide layers.
    assert (counts(masks) == 0).any() == (compression >= 10**3)


def test_synflow_leaves_no_layer_empty_and_thins_the_widest_most(vgg):
    masks = synflow.prune(vgg, EXAMPLE, compression=100, steps=8, guard=False)
    assert kept(masks) == round(N / 100)
    densities = counts(masks) / np.array([mask.numel() for mask in masks.values()])
    assert (counts(masks) > 0).all()
    # Layers with fewer weights keep a larger share, since each layer carries the same flow.
    assert densities[0] == densities.max()
    assert densities[0] > 0.5
    wide = [i for i, mask in enumerate(masks.values()) if mask.numel() == 512 * 512 * 9]
    assert densities[wide].max() < 0.02
    certificate = synflow.certify(vgg, masks, EXAMPLE)
    assert certificate.connected
    assert certificate.layer_residual < 1e-5
    assert certificate.unit_residual < 1e-5


@pytest.mark.slow
def test_one_guarded_step_to_a_million_leaves_a_path(vgg):
    """The hardest way: everything in one step, which the guard splits as it must."""
    masks = synflow.prune(vgg, EXAMPLE, compression=10**6, steps=1)
    assert kept(masks) == 15
    assert (counts(masks) > 0).all()
    assert synflow.certify(vgg, masks, EXAMPLE).connected


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_synflow_as_published(vgg, compression):
    """A hundred exponential steps: the paper's algorithm to the bit up to 1000x, guarded and connected beyond."""
    masks = synflow.prune(vgg, EXAMPLE, compression=compression)
    assert kept(masks) == round(N / compression)
    assert (counts(masks) > 0).all()
    assert synflow.certify(vgg, masks, EXAMPLE).connected
    if compression <= 10**3:
        free = synflow.prune(vgg, EXAMPLE, compression=compression, guard=False)
        assert all(torch.equal(free[name], masks[name]) for name in masks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_certified_reaches_one_weight_per_layer(seed):
    torch.manual_seed(seed)
    model = build("vgg16_bn", classes=100)
    masks = synflow.prune(model, EXAMPLE, density=14 / N, schedule="certified")
    assert counts(masks).tolist() == [1] * 14
    assert synflow.certify(model, masks, EXAMPLE).connected
    guarded = synflow.prune(model, EXAMPLE, compression=10**6)
    assert synflow.certify(model, guarded, EXAMPLE).connected
