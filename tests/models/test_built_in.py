"""The networks of the papers: sizes to the weight, shapes, and how they are initialised."""

import math

import pytest
import torch
from torch import nn

from synflow.errors import SynflowError
from synflow.models.built_in import build
from synflow.models.torchvision_cure import cure_torchvision

CIFAR, TINY, IMAGENET = (3, 32, 32), (3, 64, 64), (3, 224, 224)
IMAGENET_STYLE = ["resnet18", "resnet34", "resnet50", "resnet101", "wide_resnet18", "wide_resnet50"]


def on_meta(name, classes, input_shape):
    with torch.device("meta"):
        return build(name, classes=classes, input_shape=input_shape)


def prunable(model):
    return [module.weight for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize(
    ("name", "classes", "shape", "layers", "weights"),
    [
        ("vgg16_bn", 100, CIFAR, 14, 14_761_664),
        ("vgg16", 100, CIFAR, 14, 14_761_664),
        ("vgg11_bn", 10, CIFAR, 9, 9_222_848),
        ("vgg13_bn", 10, CIFAR, 11, 9_407_168),
        ("vgg19_bn", 10, CIFAR, 17, 20_024_000),
        # 512 * 2 * 2 * 1024 + 1024 * 1024 + 1024 * 200 after the convolutions of VGG-16
        ("vgg16_bn", 200, TINY, 16, 14_710_464 + 2_097_152 + 1_048_576 + 204_800),
        ("vgg19", 1000, IMAGENET, 19, 143_652_544),
        # 268,336 weights without the two shortcuts of 16 * 32 and 32 * 64
        ("resnet20", 10, CIFAR, 22, 268_336 + 512 + 2048),
        ("resnet1202", 10, CIFAR, 1204, 19_331_632 + 512 + 2048),
        ("resnet18", 1000, IMAGENET, 21, 11_678_912),
        ("resnet50", 1000, IMAGENET, 54, 25_502_912),
        ("resnet18", 10, CIFAR, 21, 11_164_352),
        ("fc", 10, (1, 28, 28), 6, 784 * 100 + 4 * 100 * 100 + 100 * 10),
        # 8 * 128 * 128 a block, patches of 4 * 4 * 3 numbers
        ("vit", 10, CIFAR, 26, 6 * 8 * 128**2 + 48 * 128 + 10 * 128),
        ("mobilenet", 10, CIFAR, 24, 122_032),
        ("conv", 10, CIFAR, 3, 3 * 32 * 9 + 32 * 32 * 9 + 32 * 32 * 32 * 10),
    ],
)
def test_prunable_weights(name, classes, shape, layers, weights):
    found = prunable(on_meta(name, classes, shape))
    assert len(found) == layers
    assert sum(weight.numel() for weight in found) == weights


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vgg11", 132_863_336),
        ("vgg13", 133_047_848),
        ("vgg16_bn", 138_365_992),
        ("vgg19", 143_667_240),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("wide_resnet50", 68_883_240),
    ],
)
def test_imagenet_form_has_the_published_number_of_parameters(name, parameters):
    assert sum(p.numel() for p in on_meta(name, 1000, IMAGENET).parameters()) == parameters


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110, 1202])
def test_cifar_resnet_has_as_many_layers_as_its_name_says(depth):
    shortcuts = 2
    assert len(prunable(on_meta(f"resnet{depth}", 10, CIFAR))) == depth + shortcuts


def test_wide_resnet18_doubles_what_lies_inside_the_blocks():
    narrow, wide = on_meta("resnet18", 10, CIFAR), on_meta("wide_resnet18", 10, CIFAR)
    for thin, thick in zip(narrow.stages.children(), wide.stages.children(), strict=True):
        assert thick[0].branch[0].out_channels == 2 * thin[0].branch[0].out_channels
        assert thick[0].branch[3].out_channels == thin[0].branch[3].out_channels


@pytest.mark.parametrize("shape", [CIFAR, TINY, IMAGENET])
@pytest.mark.parametrize("name", ["vgg11", "vgg16_bn", "vgg19_bn", "resnet20", *IMAGENET_STYLE])
def test_output_shape(name, shape):
    model = on_meta(name, 7, shape)
    assert model(torch.empty(2, *shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", ["fc", "conv"])
def test_small_networks_take_their_depth_and_width(name):
    model = build(name, classes=3, input_shape=(2, 5, 4), depth=4, width=6)
    assert len(prunable(model)) == 4
    assert {weight.shape[0] for weight in prunable(model)} == {6, 3}
    assert model(torch.randn(2, 2, 5, 4)).shape == (2, 3)


def test_cifar_form_averages_over_the_last_2x2_image():
    model = build("vgg11_bn").eval()
    features = model.features(torch.randn(2, *CIFAR))
    assert features.shape == (2, 512, 2, 2)
    assert torch.allclose(
        model.classifier(features.mean((2, 3))), model.classifier(model.flatten(model.pool(features)))
    )


def test_stem_follows_the_image_size():
    for name in IMAGENET_STYLE:
        assert on_meta(name, 10, TINY).stem[0].kernel_size == (3, 3)
        assert on_meta(name, 10, IMAGENET).stem[0].kernel_size == (7, 7)


@pytest.mark.parametrize("name", ["vgg16_bn", "resnet18", "fc"])
def test_weights_are_kaiming_normal_and_biases_zero(name):
    model = build(name)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            weight = module.weight.detach()
            fan_in, n = weight[0].numel(), weight.numel()
            assert abs(weight.std() * math.sqrt(fan_in / 2) - 1) < 6 / math.sqrt(2 * n)
            assert abs(weight.mean()) < 6 * math.sqrt(2 / fan_in / n)
            kurtosis = (weight**4).mean() / (weight**2).mean() ** 2
            assert abs(kurtosis - 3) < 6 * math.sqrt(96 / n)
            assert module.bias is None or not module.bias.any()
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert not module.bias.any()


def test_the_caller_seeds():
    def first_weight(seed):
        torch.manual_seed(seed)
        return next(build("resnet20").parameters())

    assert torch.equal(first_weight(1), first_weight(1))
    assert not torch.equal(first_weight(1), first_weight(2))


def test_unknown_name_lists_the_choices():
    with pytest.raises(SynflowError, match=r"no model 'vgg12'; choose from conv, fc, .*vgg19_bn, vit, wide_resnet18"):
        build("vgg12")


@pytest.mark.parametrize(("name", "shape"), [("vgg11", (3, 8, 8)), ("resnet18", (3, 32)), ("conv", (784,))])
def test_input_that_does_not_fit_is_refused(name, shape):
    with pytest.raises(SynflowError, match=r"does not fit .* at least \d+ x \d+ pixels"):
        build(name, input_shape=shape)


def test_torchvision_imports_after_the_cure():
    cure_torchvision()
    cure_torchvision()
    torchvision = pytest.importorskip("torchvision")
    assert torchvision.models.resnet18 is not None
