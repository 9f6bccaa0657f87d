"""A network prepared for inputs of one shape, as one graph that runs without Python.

Each convolution takes the form that suits the size of its images. For many positions: packed weights, the ReLU inside,
channels rounded up to whole vectors. For the smallest images: one matrix. Then the network is traced and frozen.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..compaction.record.aten_names import POOLS
from ..compaction.record.tape import Step, tensors_in
from ..compaction.verify import inputs_like
from ..errors import SynflowError
from ..network.private_copy import arguments, device_of, move
from .recorded_run import RecordedRun

VECTOR = 8  # channels in one vector of the processor; kernels are slow on an incomplete vector
WASTE = 1 / 8  # the largest relative growth of a layer by rounding up its channels
MANY = 256  # from this many positions on, a convolution pays for the overhead of oneDNN's calls
LARGEST = 1 << 19  # the most entries of a matrix that still fits into the cache


@dataclass(frozen=True)
class Forms:
    """Paths of convolutions: which get more outputs for whom, which become matrices (sizes of image in and out),
    which are packed (shape of the input, path of the ReLU that goes inside); paths of pools: the size of the image."""

    widened: list[tuple[str, str]]
    matrices: dict[str, tuple[torch.Size, torch.Size]]
    packed: dict[str, tuple[torch.Size, str | None]]
    pools: dict[str, torch.Size]


def choose_forms(model: nn.Module, seen: RecordedRun) -> Forms:
    """Choose the form of each convolution of a model whose norms are folded."""
    forms = Forms([], {}, {}, {})
    for step in seen.tape.steps:
        if step.name == "mean" and _called_once(model, seen, step, nn.AdaptiveAvgPool2d):
            forms.pools[step.module] = torch.Size(seen.tape.shapes[step.inputs[0]][2:])
        layer = _plain_convolution(model, seen, step)
        if layer is None:
            continue
        shape_in, shape_out = (torch.Size(seen.tape.shapes[n]) for n in (step.inputs[0], step.outputs[0]))
        after = _next_convolution(model, seen, step)
        if after is not None and layer.groups == 1 and 0 < -layer.out_channels % VECTOR <= WASTE * layer.out_channels:
            forms.widened.append((step.module, after))
        positions = shape_in[2:].numel() * shape_out[2:].numel()
        entries = positions * layer.in_channels * layer.out_channels
        if layer.groups == 1 and positions <= 2 * layer.weight[0, 0].numel() and entries <= LARGEST:
            forms.matrices[step.module] = shape_in[2:], shape_out[2:]
        elif shape_out[0] * shape_out[2:].numel() >= MANY:
            relu = seen.reader(step.outputs[0])
            inside = relu is not None and relu.name == "relu" and _called_once(model, seen, relu, nn.ReLU)
            forms.packed[step.module] = shape_in, relu.module if relu is not None and inside else None
    return forms


def _plain_convolution(model: nn.Module, seen: RecordedRun, step: Step) -> nn.Conv2d | None:
    """The layer of a step, if it is a two-dimensional convolution, used once, that supports all forms."""
    if step.name != "convolution" or not seen.alone(model, step.module):
        return None
    layer = model.get_submodule(step.module)
    plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return layer if isinstance(layer, nn.Conv2d) and plain and len(seen.tape.shapes[step.inputs[0]]) == 4 else None


def _called_once(model: nn.Module, seen: RecordedRun, step: Step, kind: type[nn.Module]) -> bool:
    """Whether the step is the only operation, in a run, of a module of exactly this class."""
    module = model.get_submodule(step.module)
    if type(module) is not kind or module._forward_hooks or module._forward_pre_hooks:
        return False
    return sum((other.module, other.name) == (step.module, step.name) for other in seen.tape.steps) == 1


def _next_convolution(model: nn.Module, seen: RecordedRun, step: Step) -> str | None:
    """The path of the one convolution that reads this one's channels, through channel-by-channel operations only."""
    number = step.outputs[0]
    while (after := seen.reader(number)) is not None:
        if after.name == "convolution" and after.inputs[0] == number:
            layer = _plain_convolution(model, seen, after)
            return after.module if layer is not None and layer.groups == 1 else None
        # These map each channel separately and zero to zero, so a channel of zeros that nothing reads may be added.
        channelwise = after.name in POOLS or (after.at_zero is not None and after.at_zero[0] == 0)
        if not channelwise or any(seen.reads[other] for other in after.outputs[1:]):
            return None
        number = after.outputs[0]
    return None


def reshape(model: nn.Module, forms: Forms, channels_last: bool) -> None:
    """Apply the forms that exist in any precision; the outputs stay the same up to rounding."""
    for path, reader in forms.widened:
        layer, after = _layer(model, path), _layer(model, reader)
        more = -layer.out_channels % VECTOR
        layer.weight = _fixed(F.pad(layer.weight, (0, 0, 0, 0, 0, 0, 0, more)))
        if layer.bias is not None:
            layer.bias = _fixed(F.pad(layer.bias, (0, more)))
        after.weight = _fixed(F.pad(after.weight, (0, 0, 0, 0, 0, more)))
        layer.out_channels = after.in_channels = layer.out_channels + more
    for path, (before, behind) in forms.matrices.items():
        replace(model, path, MatrixConvolution(_layer(model, path), before, behind, channels_last))
    for path, size in forms.pools.items():
        replace(model, path, nn.AvgPool2d((size[0], size[1])))


def pack(model: nn.Module, forms: Forms, channels_last: bool) -> None:
    """Pack weights for oneDNN, which is possible in single precision only."""
    if not torch.backends.mkldnn.is_available():
        return
    for path, (shape, relu) in forms.packed.items():
        layer = _layer(model, path)
        if layer.weight.dtype is torch.float32 and layer.weight.device.type == "cpu":
            shape = torch.Size((shape[0], layer.in_channels, *shape[2:]))
            replace(model, path, PackedConvolution(layer, shape, relu is not None, channels_last))
            if relu is not None:
                replace(model, relu, nn.Identity())


class MatrixConvolution(nn.Module):
    """A convolution of images that are hardly larger than the kernel, as one matrix product."""

    def __init__(self, layer: nn.Conv2d, before: torch.Size, behind: torch.Size, channels_last: bool) -> None:
        super().__init__()
        self.last, self.size, self.channels = channels_last, behind, layer.out_channels
        units = torch.eye(layer.in_channels * before.numel(), dtype=layer.weight.dtype, device=layer.weight.device)
        with torch.no_grad():
            images = self._images(units, layer.in_channels, before)
            outputs = F.conv2d(images, layer.weight, None, layer.stride, layer.padding, layer.dilation)
            self.weight = _fixed(self._flat(outputs).contiguous())
            self.bias = None
            if layer.bias is not None:
                self.bias = _fixed(self._flat(layer.bias.reshape(1, -1, 1, 1).expand(1, -1, *behind))[0])

    def _flat(self, images: Tensor) -> Tensor:
        return (images.permute(0, 2, 3, 1) if self.last else images).flatten(1)

    def _images(self, flat: Tensor, channels: int, size: torch.Size) -> Tensor:
        return flat.view(-1, *size, channels).permute(0, 3, 1, 2) if self.last else flat.view(-1, channels, *size)

    def forward(self, images: Tensor) -> Tensor:
        """Multiply all input pixels by the matrix to all output pixels."""
        return self._images(F.linear(self._flat(images), self.weight.t(), self.bias), self.channels, self.size)


class PackedConvolution(nn.Module):
    """A convolution with weights packed by oneDNN for images of one size, optionally followed by a ReLU."""

    def __init__(self, layer: nn.Conv2d, shape: torch.Size, relu: bool, channels_last: bool) -> None:
        super().__init__()
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.packed = torch.ops.mkldnn_prepacked.conv2d_prepack(
            layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups, list(shape),
            "relu" if relu else "none",
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """The outputs of the original convolution (and ReLU)."""
        outputs: Tensor = torch.ops.mkldnn_prepacked.conv2d_run(
            images.contiguous(memory_format=self.format), self.packed
        )
        return outputs


def freeze(model: nn.Module, reference: nn.Module, example: Any) -> nn.Module:
    """The model as one graph without Python, with the outputs of the reference on the example and on random inputs."""
    device = device_of(model)
    args, kwargs = arguments(move(inputs_like(example, None, None), device))
    given: dict[str, Any] = {"example_kwarg_inputs": kwargs} if kwargs else {"example_inputs": args}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracing warns that shapes become fixed, which is intended
        script: nn.Module = torch.jit.freeze(torch.jit.trace(model, **given, check_trace=False))
        for seed in (None, 1, 2):  # three runs, after which the graph is optimised
            args, kwargs = arguments(move(inputs_like(example, seed, None), device))
            _compare(tensors_in(reference(*args, **kwargs)), tensors_in(script(*args, **kwargs)))
    return script


def _compare(expected: list[Tensor], got: list[Tensor]) -> None:
    if [t.shape for t in expected] != [t.shape for t in got]:
        raise SynflowError("outputs have other shapes")
    for one, other in zip(expected, got, strict=True):
        if one.numel() and one.is_floating_point():
            gap, size = float((one.double() - other.double()).abs().max()), float(one.double().abs().max())
            if not gap <= torch.finfo(one.dtype).eps ** 0.5 / 3 * size:  # 1e-4 in single precision
                raise SynflowError(f"outputs differ by {gap:.1e}, the largest is {size:.1e}")


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)


def _layer(model: nn.Module, path: str) -> nn.Conv2d:
    layer = model.get_submodule(path)
    assert isinstance(layer, nn.Conv2d)
    return layer


def replace(model: nn.Module, path: str, module: nn.Module) -> None:
    """Replace the module at a path."""
    parent, _, name = path.rpartition(".")
    model.get_submodule(parent)._modules[name] = module
