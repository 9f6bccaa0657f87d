"""The form for inference: norms folded where that is right, left where it is not, outputs the same."""

import copy

import pytest
import torch
from torch import nn

from blocks import residual
from checks import lived_in
from compact_twins import without
from synflow import compact, for_inference
from synflow.compaction.record.tape import tensors_in
from synflow.errors import SynflowError
from synflow.masks.attach import attach, attached
from zoo import ZOO

IMAGE = torch.randn(2, 4, 6, 6)


def norms(model):
    return sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def folded(model, example=IMAGE, left=0):
    """Fold, and compare in single precision on other inputs, at another batch size."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ready = for_inference(model, example)
    assert norms(ready) == left
    assert not ready.training
    assert not any(p.requires_grad for p in ready.parameters())
    inputs = torch.randn(5, *example.shape[1:])
    mode = model.training
    torch.testing.assert_close(ready(inputs), model.eval()(inputs), rtol=1e-4, atol=1e-4)
    model.train(mode)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    return ready


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3),
        nn.Conv2d(4, 6, 3, bias=False, stride=2, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.ConvTranspose2d(4, 6, 3),
        nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False),
    ],
)
def test_a_norm_behind_a_convolution_of_any_kind_is_folded(layer):
    model = lived_in(nn.Sequential(copy.deepcopy(layer), nn.BatchNorm2d(6), nn.ReLU()))
    ready = folded(model)
    assert isinstance(ready[1], nn.Identity)
    assert ready[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert for_inference(model, IMAGE, channels_last=False)[0].weight.is_contiguous()


def test_norms_behind_other_layers_and_without_gains_are_folded():
    folded(lived_in(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))), torch.randn(2, 3))
    folded(lived_in(nn.Sequential(nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5, affine=False))), torch.randn(2, 3))
    folded(lived_in(nn.Sequential(nn.Conv1d(4, 5, 3), nn.BatchNorm1d(5))), torch.randn(2, 4, 7))
    folded(lived_in(nn.Sequential(nn.Conv3d(2, 3, 3), nn.BatchNorm3d(3))), torch.randn(2, 2, 4, 4, 4))


def test_a_norm_stays_where_more_than_it_reads_the_layer():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.conv(x)
            return x + self.norm(x)

    folded(lived_in(Both()), left=1)


def test_a_norm_stays_behind_a_sum_and_behind_what_is_used_twice():
    conv = nn.Conv2d(4, 4, 3, padding=1)
    folded(lived_in(nn.Sequential(residual(conv), nn.BatchNorm2d(4))), left=1)
    twice = nn.Sequential(conv, nn.BatchNorm2d(4), conv, nn.BatchNorm2d(4))
    folded(lived_in(twice), left=2)
    tied = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    tied[2].weight = tied[0].weight
    folded(lived_in(tied), left=1)


def test_a_norm_without_running_statistics_stays():
    model = nn.Sequential(nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5, track_running_stats=False))
    ready = for_inference(model, IMAGE)
    assert norms(ready) == 1
    torch.testing.assert_close(ready(IMAGE), model(IMAGE), rtol=1e-5, atol=1e-5)


def test_a_layer_that_a_subclass_extends_stays():
    class Doubled(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    folded(lived_in(nn.Sequential(nn.Conv2d(4, 5, 3), Doubled(5))), left=1)


def test_masks_are_baked_in_and_a_compact_network_keeps_its_own():
    model = lived_in(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 3)))
    attach(model, {"3.weight": without(model, "3.weight", 1, [1, 4])})
    small = compact(model, IMAGE)
    ready = folded(small)
    assert ready[0].weight.shape[0] == 4
    assert not attached(ready)
    assert attached(small)
    assert not hasattr(ready, "compaction")
    torch.testing.assert_close(ready(IMAGE), model.eval()(IMAGE), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_keeps_its_outputs(name):
    sample = ZOO[name]()
    model = lived_in(sample.model).eval()
    ready = for_inference(model, sample.example)
    inputs = sample.example if isinstance(sample.example, tuple) else (sample.example,)
    with torch.no_grad():
        pairs = zip(tensors_in(model(*inputs)), tensors_in(ready(*inputs)), strict=True)
    for expected, got in pairs:
        tolerance = 0.05 if expected.dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    if name in {"vgg_like", "residual", "zero_init_residual", "grouped_depthwise"}:
        assert norms(ready) < norms(model)


def test_what_does_not_run_is_told():
    with pytest.raises(SynflowError, match="does not run on the example"):
        for_inference(nn.Conv2d(3, 4, 3), IMAGE)
    with pytest.raises(SynflowError, match="must be a torch.nn.Module"):
        for_inference(3, IMAGE)


def test_a_model_without_parameters_is_ready_as_it_is():
    ready = for_inference(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), torch.ones(1, 3, 8, 8))
    assert ready(torch.ones(1, 3, 8, 8)).shape == (1, 3, 4, 4)
