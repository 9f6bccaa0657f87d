"""Two models compared in double precision, on inputs like the example: outputs, statistics and gradients."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..network.private_copy import arguments
from ..support.private_torch import DropoutNd, pytree
from ..support.random_state import seeded
from .cut.attention import Indices
from .cut.surgery import cut
from .record.tape import never_zero, tensors, tensors_in

# How far outputs and gradients may differ, relative to their size; single precision is for models without double.
TOLERANCES = {torch.float64: (1e-10, 1e-7), torch.float32: (1e-4, 1e-2)}
SMALLEST = 1e-4  # smaller sizes count as this, since larger numbers that cancel leave rounding errors
LARGE_EXAMPLE = 100_000  # an example of more numbers is not tried with longer sequences and images
_DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout, torch.feature_dropout}
_ALPHA = "alpha dropout makes other numbers of zeros in training, so units that are zero before it stay"
_ALPHA_DROPOUTS = {F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout}
_NARROW = {torch.float32, torch.float16, torch.bfloat16}
_CASTS = {Tensor.float, Tensor.half, Tensor.bfloat16}


class DifferenceError(Exception):
    """Two models differ; the message says in what."""


class NotANumberError(DifferenceError):
    """The masked model itself returns NaN, which equals nothing."""


class _Exactly(TorchFunctionMode):
    """Everything in double precision, nothing dropped out."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func in _ALPHA_DROPOUTS:
            x, p, training = [*args, *kwargs.values(), 0.5, False][:3]
            return never_zero(x, _ALPHA) if p and training else x
        if func in _CASTS:
            return args[0].to(self.dtype)
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        if func is F.scaled_dot_product_attention and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        return func(*map(self.wide, args), **{name: self.wide(value) for name, value in kwargs.items()})

    def wide(self, value: Any) -> Any:
        return self.dtype if isinstance(value, torch.dtype) and value in _NARROW else value


def double(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Bring a copy into the form in which models are compared: double precision, on the CPU, without dropout."""
    model = model.to(device="cpu", dtype=dtype)
    for module in model.modules():
        if isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout):
            continue  # which changes zeros, so that it must be seen when the model is recorded
        if isinstance(module, DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # type: ignore[assignment]
    return model


def run(model: nn.Module, inputs: Any, training: bool, seed: int = 0, plain: bool = False) -> Any:
    """Call a model in one of the two modes, from a seed.

    A `plain` call leaves precision and dropout to the model, so that torch may use its fused layers.
    """
    args, kwargs = arguments(inputs)
    model.train(training)
    exactly = contextlib.nullcontext() if plain else _Exactly(_precision(model))
    with seeded(seed), torch.autocast("cpu", enabled=False), exactly:
        return model(*args, **kwargs)


def _precision(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float64)


def compare(
    reference: nn.Module,
    compact: nn.Module,
    kept: Mapping[str, Mapping[int, Indices]],
    masks: Mapping[str, Tensor],
    inputs: Any,
    training: bool,
) -> float:
    """The largest difference of the outputs relative to their size; raises `DifferenceError` where it is too large.

    In train mode running statistics are compared too, and the gradients of every surviving weight; what was removed
    must have none.
    """
    tolerance, gradient_tolerance = TOLERANCES[_precision(reference)]
    statistics = {name: buffer.clone() for name, buffer in reference.named_buffers()}
    with torch.set_grad_enabled(training):
        expected = tensors_in(run(reference, inputs, training))
        got = tensors_in(run(compact, inputs, training))
    worst = compare_outputs(expected, got, tolerance)
    if not training:
        return worst
    part = tensors(compact)
    for name, buffer in reference.named_buffers():
        _close(name, cut(buffer, kept.get(name, {})), part[name], tolerance)
    wobble: float | None = None
    wholes, parts = _gradients(reference, expected, masks), _gradients(compact, got, {})
    for name, gradient in wholes.items():
        survived = cut(gradient, kept.get(name, {}))
        if int(gradient.count_nonzero()) != int(survived.count_nonzero()):
            if not bool(torch.isfinite(gradient).all()):
                raise DifferenceError(f"gradients of {name} are not finite in the masked model itself")
            raise DifferenceError(f"removed weights of {name} have gradients, so they would come alive in training")
        own = parts[name] * cut(masks[name], kept.get(name, {})) if name in masks else parts[name]
        try:
            _close(f"the gradient of {name}", survived, own, gradient_tolerance)
        except DifferenceError:
            if wobble is None:
                # Norms of constant activations magnify rounding errors to any size, so gradients need only agree as
                # far as they do when the last bits of the weights change, times 1000, since one change shows less
                # than the worst.
                shaken = _shaken(reference, statistics)
                others = _gradients(shaken, tensors_in(run(shaken, inputs, training)), masks)
                wobble = max(float((others[other] - whole).abs().max()) for other, whole in wholes.items())
            if not float((survived - own).abs().max()) <= 1e3 * wobble:
                raise
    return worst


def compare_outputs(expected: list[Tensor], got: list[Tensor], tolerance: float) -> float:
    """The largest difference, relative to the size of the outputs."""
    if len(expected) != len(got):
        raise DifferenceError(f"{len(expected)} outputs became {len(got)}")
    pairs = enumerate(zip(expected, got, strict=True))
    return max((_close(f"output {place}", a, b, tolerance) for place, (a, b) in pairs), default=0.0)


def _gradients(model: nn.Module, outputs: list[Tensor], masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of a random sum of the outputs with respect to every weight, zero where pruned."""
    generator = torch.Generator().manual_seed(1)
    directions = [torch.randn(output.shape, generator=generator, dtype=torch.float64) for output in outputs]
    terms = [(o.double() * way).sum() for o, way in zip(outputs, directions, strict=True) if o.requires_grad]
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for weight in weights.values():
        weight.grad = None
    if terms and weights:
        torch.stack(terms).sum().backward()  # reentrant checkpoints know no `torch.autograd.grad`
    found = {name: torch.zeros_like(weight) if weight.grad is None else weight.grad for name, weight in weights.items()}
    return {name: gradient * masks[name] if name in masks else gradient for name, gradient in found.items()}


def _shaken(reference: nn.Module, statistics: Mapping[str, Tensor]) -> nn.Module:
    """A copy in which all weights have changed by about their last bit, and running statistics are what they were."""
    shaken = copy.deepcopy(reference)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, buffer in shaken.named_buffers():
            buffer.copy_(statistics[name])
        for weight in shaken.parameters():
            last_bit = torch.finfo(weight.dtype).eps * torch.randn(weight.shape, generator=generator).to(weight)
            weight.mul_(1 + last_bit)
    return shaken


def _close(what: str, expected: Tensor, got: Tensor, tolerance: float) -> float:
    if expected.shape != got.shape:
        raise DifferenceError(f"{what} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    expected, got = expected.detach(), got.detach()
    if expected.dtype == torch.bool and not torch.equal(expected, got):
        raise DifferenceError(f"{what} differs")
    finite = torch.isfinite(expected) & torch.isfinite(got)
    if not bool(finite.all()):
        if bool(expected.isnan().any()):
            raise NotANumberError(f"{what} is not a number in the masked model itself")
        if not torch.equal(expected[~finite], got[~finite]):
            raise DifferenceError(f"{what} is not finite in the same places")
        expected, got = expected[finite], got[finite]
    if not expected.numel() or expected.dtype == torch.bool:
        return 0.0
    error = float((expected - got).abs().max()) / max(SMALLEST, float(expected.abs().max()))
    if error > tolerance:
        raise DifferenceError(f"{what} differs by {error:.1e} of its size")
    return error


def first_not_a_number(model: nn.Module, inputs: Any) -> str:
    """The first module that returns NaN in eval mode; the model, a private copy, keeps the hooks."""
    found: list[str] = []

    def note(path: str, _module: nn.Module, _inputs: Any, result: Any) -> None:
        if path and any(bool(tensor.isnan().any()) for tensor in tensors_in(result)):
            found.append(path)

    for path, module in model.named_modules():
        module.register_forward_hook(partial(note, path))
    with torch.no_grad():
        run(model, inputs, training=False)
    return found[0] if found else "the model's own forward"


def inputs_like(example: Any, seed: int | None, dtype: torch.dtype | None = torch.float64, repeat: int = 1) -> Any:
    """The example, or random numbers in place of its floating tensors; without a `dtype` each keeps its own."""
    generator = torch.Generator().manual_seed(seed or 0)

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.detach().cpu().clone()
        if repeat > 1 and leaf.dim():
            leaf = leaf.repeat_interleave(repeat, 0)
        if not leaf.is_floating_point():
            return leaf
        own = leaf.dtype if dtype is None else dtype
        return leaf.to(own) if seed is None else torch.randn(leaf.shape, generator=generator, dtype=own)

    return pytree.tree_map(convert, _plain(example))


def shortened(example: Any) -> list[Any]:
    """The first two of a longer batch, if all tensors have the same length: they show as much as all."""
    lengths = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors_in(example)}
    if len(lengths) != 1 or lengths.pop() <= 2:
        return []
    return [pytree.tree_map(lambda leaf: leaf[:2] if isinstance(leaf, Tensor) else leaf, _plain(example))]


def resized(example: Any) -> Iterator[Any]:
    """The example with one more in the batch and other lengths of sequences and images; then with one of the two."""
    given = tensors_in(example)
    seen = [[tensor.shape for tensor in given]]
    factor = 2 if sum(tensor.numel() for tensor in given) <= LARGE_EXAMPLE else 1

    def change(leaf: Any, more: int, place: int | None) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return leaf
        for dim in _positions(leaf, place):
            longer = factor * leaf.shape[dim] if leaf.dim() < 4 and factor > 1 else (leaf.shape[dim] + 1) // 2
            places = torch.arange(longer, device=leaf.device) * leaf.shape[dim] // longer
            leaf = leaf.index_select(dim, places)
        return torch.cat([leaf, leaf[:more]])

    for more, place in ((1, 1), (1, 2), (1, None), (0, 1), (0, 2)):
        other = pytree.tree_map(partial(change, more=more, place=place), _plain(example))
        shapes = [tensor.shape for tensor in tensors_in(other)]
        if shapes not in seen:
            seen.append(shapes)
            yield other


def _positions(tensor: Tensor, place: int | None) -> Iterable[int]:
    """Dimensions that may be positions: those of an image, of a sequence of vectors the given one, of numbers all."""
    if place is None:
        return ()
    if tensor.is_floating_point():
        return range(2, tensor.dim()) if tensor.dim() > 3 else [place] if tensor.dim() == 3 else ()
    return range(1, tensor.dim())


def _plain(example: Any) -> Any:
    return dict(example) if isinstance(example, Mapping) and not isinstance(example, dict) else example
