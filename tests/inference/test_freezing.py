"""The frozen form: which convolution takes which form, and that outputs stay the same in all of them."""

import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from blocks import residual
from checks import lived_in
from compact_strategies import tied_networks
from synflow import for_inference
from synflow.compaction.record.tape import tensors_in
from synflow.inference import freezing
from synflow.inference.freezing import MatrixConvolution, choose_forms, reshape
from synflow.inference.recorded_run import record
from zoo import ZOO

IMAGE = torch.randn(1, 3, 16, 16)


def block(inputs, outputs, **options):
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options), nn.BatchNorm2d(outputs), nn.ReLU()


def vgg():
    """Images of 16, 8, 4 and 2 pixels, widths that are no multiples of eight."""
    layers = [*block(3, 15), *block(15, 23), nn.MaxPool2d(2), *block(23, 30), nn.MaxPool2d(2), *block(30, 31)]
    layers += [nn.MaxPool2d(2), *block(31, 20), *block(20, 21, bias=False)]
    return lived_in(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(21, 4)).eval())


def forms_of(model, example=IMAGE):
    ready = for_inference(model, example)
    return choose_forms(ready, record(ready, example))


def frozen(model, example=IMAGE, **options):
    """Freeze without a warning, and compare on other inputs and another batch size."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        graph = for_inference(model, example, freeze=True, **options)
    assert isinstance(graph, torch.jit.ScriptModule)
    for size in (1, 3):
        inputs = torch.randn(size, *example.shape[1:])
        with torch.no_grad():
            expected, got = model.eval()(inputs), graph(inputs)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=float(1e-5 * expected.abs().max()))
    return graph


def test_every_convolution_takes_the_form_that_suits_its_images():
    forms = forms_of(vgg())
    assert forms.widened == [("0", "3"), ("3", "7"), ("7", "11"), ("11", "15")]  # 20 would grow by a fifth
    assert forms.matrices == {"15": ((2, 2), (2, 2)), "18": ((2, 2), (2, 2))}
    assert forms.packed == {"0": ((1, 3, 16, 16), "2"), "3": ((1, 15, 16, 16), "5")}
    assert forms.pools == {"21": (2, 2)}


def test_the_graph_has_these_forms_and_the_same_outputs():
    for channels_last in (True, False):
        text = str(frozen(vgg(), channels_last=channels_last).graph)
        assert text.count("aten::_convolution(") == 2
        assert text.count("aten::linear(") == 3
        assert "batch_norm" not in text
        assert "adaptive" not in text
        if torch.backends.mkldnn.is_available():
            assert text.count("conv2d_run(") == 2
            assert text.count("aten::relu") == 4


def test_batches_are_packed_too():
    forms = forms_of(vgg(), torch.randn(16, 3, 16, 16))
    assert list(forms.packed) == ["0", "3", "7", "11"]
    frozen(vgg(), torch.randn(16, 3, 16, 16))


def test_channels_that_others_read_are_not_widened():
    layers = nn.Sequential(*block(15, 15), nn.Conv2d(15, 15, 3, padding=1))
    model = lived_in(nn.Sequential(nn.Conv2d(3, 15, 3), nn.ReLU(), residual(layers), nn.ReLU(), nn.Conv2d(15, 4, 3)))
    assert forms_of(model).widened == [("2.left.0.0", "2.left.0.3")]
    frozen(model)
    grouped = nn.Sequential(
        nn.Conv2d(3, 15, 3), nn.ReLU(), nn.Conv2d(15, 30, 3, groups=3), nn.ReLU(), nn.Conv2d(30, 2, 1)
    )
    assert forms_of(grouped).widened == []
    frozen(grouped)
    learned = nn.Sequential(nn.Conv2d(3, 15, 3), nn.PReLU(15), nn.Conv2d(15, 2, 1))
    assert forms_of(learned).widened == []
    frozen(learned)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(3, 4, 3, padding=1), (2, 2)),
        (nn.Conv2d(3, 4, 3, padding=1, stride=2, bias=False), (3, 2)),
        (nn.Conv2d(3, 4, (3, 5), padding=(1, 4), dilation=(1, 2)), (2, 3)),
        (nn.Conv2d(3, 4, 1), (1, 1)),
    ],
)
def test_a_matrix_does_what_the_convolution_did(layer, size, channels_last):
    layer, images = layer.double(), torch.randn(5, 3, *size).double()
    with torch.no_grad():
        expected = layer(images)
        matrix = MatrixConvolution(layer, images.shape[2:], expected.shape[2:], channels_last)
        torch.testing.assert_close(matrix(images), expected, rtol=1e-12, atol=1e-12)


def test_large_matrices_and_layers_used_twice_stay_convolutions():
    assert forms_of(nn.Conv2d(512, 512, 3, padding=1), torch.randn(1, 512, 2, 2)).matrices == {}
    conv = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), conv)
    forms = forms_of(model)
    assert not forms.packed
    assert not forms.widened
    frozen(model)


def test_a_relu_that_is_used_twice_or_not_alone_stays_outside():
    relu = nn.ReLU()
    twice = nn.Sequential(nn.Conv2d(3, 8, 3), relu, nn.Conv2d(8, 8, 3), relu)
    assert [inside for _, inside in forms_of(twice, torch.randn(4, 3, 16, 16)).packed.values()] == [None, None]

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 8, 1), nn.ReLU()

        def forward(self, x):
            x = self.conv(x)
            return x - 2 * self.relu(x)

    assert [inside for _, inside in forms_of(Both()).packed.values()] == [None]
    frozen(Both())


def test_shapes_of_widened_layers_are_written_down():
    model = for_inference(vgg(), IMAGE)
    reshape(model, choose_forms(model, record(model, IMAGE)), channels_last=True)
    assert [(m.in_channels, m.out_channels) for m in model if isinstance(m, nn.Conv2d)] == [
        (3, 16), (16, 24), (24, 32), (32, 32)
    ]  # fmt: skip


def test_what_cannot_be_frozen_comes_back_unfrozen_with_a_warning():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            return {"out": self.norm(self.conv(x))}

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x) if x[0, 0, 0, 0] > 5 else -self.conv(x)

    with pytest.warns(UserWarning, match="Named is made ready for inference, but not frozen") as told:
        ready = for_inference(Named(), IMAGE, freeze=True)
    assert [warning.filename for warning in told] == [__file__]  # it points at the line of the caller
    assert isinstance(ready.norm, nn.Identity)
    assert set(ready(IMAGE)) == {"out"}
    high = torch.full((1, 3, 16, 16), 9.0)
    with pytest.warns(UserWarning, match="outputs differ"):
        ready = for_inference(Branching(), high, freeze=True)
    low = torch.zeros(1, 3, 16, 16)
    torch.testing.assert_close(ready(low), -ready.conv(low))


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_keeps_its_outputs(name):
    sample = ZOO[name]()
    model = lived_in(sample.model).eval()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ready = for_inference(model, sample.example, freeze=True)
    assert isinstance(ready, torch.jit.ScriptModule) or any("not frozen" in str(w.message) for w in told)
    inputs = sample.example if isinstance(sample.example, tuple) else (sample.example,)
    with torch.no_grad():
        pairs = zip(tensors_in(model(*inputs)), tensors_in(ready(*inputs)), strict=True)
    for expected, got in pairs:
        tolerance = 0.05 if expected.dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=max(10, settings.default.max_examples // 5))
@given(tied_networks())
def test_random_networks_keep_their_outputs_in_every_form(network):
    model = lived_in(network.model).eval()
    small_images = mock.patch.multiple(freezing, MANY=2, WASTE=8.0, LARGEST=1 << 12)
    with warnings.catch_warnings(record=True) as told, small_images:
        warnings.simplefilter("always")
        ready = for_inference(model, network.example, freeze=True)
    reasons = " ".join(str(warning.message) for warning in told)
    assert "not the same" not in reasons  # in double precision
    assert "outputs" not in reasons
    assert isinstance(ready, torch.jit.ScriptModule) or "not frozen" in reasons


GROWTH = """
import gc, warnings, torch, synflow
from torch import nn
warnings.simplefilter("ignore")
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).eval()
x = torch.ones(1, 3, 8, 8)

def grown(call, times=40):
    for _ in range(10):
        call()
    gc.collect()
    before = int(open("/proc/self/statm").read().split()[1])
    for _ in range(times):
        call()
    gc.collect()
    return (int(open("/proc/self/statm").read().split()[1]) - before) * 4096 / times

def torch_alone():
    with torch.no_grad():
        torch.jit.freeze(torch.jit.trace(model, x, check_trace=False))

alone = grown(torch_alone)
print(grown(lambda: synflow.for_inference(model, x, freeze=True)) - alone, alone)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read as Linux tells it")
def test_memory_that_freezing_keeps_is_that_of_torch_jit():
    """`torch.jit.trace` and `freeze` alone keep about 0.4 MB a call; what is added to that must not add up."""
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    ours, alone = map(float, done.stdout.split())
    assert ours < 150_000, f"{ours:,.0f} bytes a call beside {alone:,.0f} of torch.jit"
