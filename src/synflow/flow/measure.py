"""One evaluation of the flow: its value, and the share of it that passes each weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..engine import fold_positions as folding
from ..engine.factored_gradient import Sensitivity
from ..engine.select_lightest import not_finite
from ..errors import SynflowError
from ..network.private_copy import Network, isolated, restoring
from ..support.chunked import keeps_all
from ..support.torch_modes import plain_tensors
from .dispatch import Arithmetic, LinearizationMode, collected
from .tensor import Degrees, Flow, as_flow, common_exponent, either, number, scaled


@dataclass(frozen=True)
class Measurement:
    """The flow R = value * 2**exponent, and for each weight its score in units of 2**exponent.

    A lazy measurement has `sensitivities` in place of scores, and `total`, the value as a tensor; it may be `repeated`
    from a recording.
    """

    value: float
    exponent: int
    scores: dict[str, Tensor]
    had_shifts: bool = False
    notes: tuple[str, ...] = ()
    degrees: Degrees | None = None
    unit_flows: dict[str, Tensor] = field(default_factory=dict)
    loose: bool = False
    bent: bool = False
    input_reached: bool = True
    sensitivities: dict[str, Sensitivity] = field(default_factory=dict)
    total: Tensor | None = None
    repeated: bool = False

    @property
    def log2(self) -> float:
        """log2 of the flow, minus infinity where there is none."""
        return math.log2(self.value) + self.exponent if self.value > 0 else -math.inf


@plain_tensors
@restoring
def measure(
    network: Network,
    masks: Mapping[str, Tensor] | None = None,
    *,
    power: int = 1,
    shifts: bool = True,
    gradients: bool = True,
    magnitudes: Mapping[str, Tensor] | None = None,
    leaf_exponent: int = 0,
    arithmetic: Arithmetic | None = None,
    trace: bool = False,
    lazy: bool = False,
    bounded: bool = False,
    fold: bool = False,
) -> Measurement:
    """Send ones (or the example's tokens) through the network of absolute masked weights, and score each weight.

    The score is synaptic saliency of the flow, S = |w| dR/d|w|. `power=2` uses squared weights; `shifts=False`
    leaves out biases; `magnitudes * 2**leaf_exponent` stands in for the absolute masked weights; `trace`
    adds how often terms meet each tensor (`degrees`) and the flow that leaves each unit of a layer (`unit_flows`).
    `lazy` leaves the scores as factors, to be multiplied out a block at a time, or with `bounded` only where their
    bounds are low; `fold` computes positions of images that see the same only once.
    """
    how = arithmetic or Arithmetic(shifts=shifts)
    how.constants = network.constants
    how.folding = fold and not trace and how.inputs is None
    notes: dict[str, None] = {}
    if magnitudes is None:
        magnitudes = absolute(network, masks, power, notes)
    leaves = {}
    for index, (name, magnitude) in enumerate(magnitudes.items()):
        tracked = _once(len(magnitudes), index) if trace else None
        leaves[name] = as_flow(magnitude.detach().requires_grad_(gradients), leaf_exponent, tracked)
    sensitivities = {name: Sensitivity(leaf.shape, bounded=bounded) for name, leaf in leaves.items()}
    if lazy:
        how.captured = {id(leaf): sensitivities[name] for name, leaf in leaves.items()}
    follow = gradients or how.inputs is not None
    with isolated(network.seed, network.device):
        network.model.eval()
        network.replace(leaves)
        wide = any(leaf.dtype == torch.float64 for leaf in leaves.values())
        dtype = torch.float64 if wide else torch.float32
        cast_rest(network, dtype)
        zero = np.zeros(len(leaves), dtype=np.int64)
        example = pytree.tree_map(
            lambda leaf: _input(leaf, dtype, (zero, zero) if trace else None, how), network.example
        )
        names = {module: name for name, module in network.model.named_modules()}
        how.watched = {id(leaf): name for name, leaf in leaves.items()} if trace else None
        mode = LinearizationMode(how, names, follow)
        with torch.set_grad_enabled(follow), mode:
            output = _forward(network, example)
        total = _total(output)
        value = number(total.detach())
        if not math.isfinite(value):
            raise SynflowError(f"the flow of {type(network.model).__name__} is {value}; check weights and statistics")
        weights = leaves if gradients else {}
        scores = _scores(total, weights, sensitivities if lazy else None, how.inputs or []) if follow else {}
        network.put_back()  # so that magnitudes live no longer than whoever made them wants
    notes.update(how.notes)
    units = {name: flow for name, flow in how.unit_flows.items() if name not in how.untapped}
    return Measurement(
        value, total.exponent, scores, how.had_shifts, tuple(notes), total.degrees, units, how.loose, how.bent,
        _reached(how), sensitivities if lazy else {}, total.detach().as_subclass(Tensor) if lazy else None,
    )  # fmt: skip


@plain_tensors
def absolute(
    network: Network,
    masks: Mapping[str, Tensor] | None,
    power: int = 1,
    notes: dict[str, None] | None = None,
    *,
    half: bool = False,
    only: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """|w| ** power under the masks; a tensor that is zero everywhere counts as ones.

    In at least single precision, or with `half` as the weights are; of `only` some tensors, where named.
    """
    wide = any(weight.dtype == torch.float64 for weight in network.weights.values())
    result = {}
    for name, weight in network.weights.items():
        if only is not None and name not in only:
            continue
        dtype = torch.float64 if wide else weight.dtype if half else torch.float32
        magnitude = weight.detach().to(dtype).abs()
        if not magnitude.numel() or not bool(magnitude.amax() > 0):
            if notes is not None:
                notes[f"{name}: zero everywhere, counts as ones"] = None
            magnitude.fill_(1.0)
        if power != 1:
            magnitude.pow_(power)
        if masks is not None and not keeps_all(masks[name]):
            magnitude.masked_fill_(masks[name].logical_not(), 0.0)
        result[name] = magnitude
    return result


def _once(count: int, index: int) -> Degrees:
    unit = np.zeros(count, dtype=np.int64)
    unit[index] = 1
    return unit, unit


def _input(leaf: Any, dtype: torch.dtype, degrees: Degrees | None, how: Arithmetic) -> Any:
    """Floating inputs become ones; token ids and masks stay as given."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    if how.folding and leaf.dim() == 4 and leaf.numel():
        return folding.input_of_ones(leaf.shape, dtype, leaf.device, how.constants)
    ones = torch.ones(leaf.shape, dtype=dtype, device=leaf.device)
    return as_flow(ones, 0, degrees) if how.inputs is None else collected(ones, how.inputs)


def cast_rest(network: Network, dtype: torch.dtype) -> None:
    """Half-precision biases, norms and buffers of the copy in the precision of the scores."""
    for module in network.model.modules():
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for table in tables:
            for key, tensor in table.items():
                if tensor is None or isinstance(tensor, Flow) or not tensor.is_floating_point():
                    continue
                if tensor.dtype != dtype:
                    cast = tensor.detach().to(dtype)
                    table[key] = torch.nn.Parameter(cast, False) if isinstance(tensor, torch.nn.Parameter) else cast


def _forward(network: Network, example: Any) -> Any:
    try:
        return network.call(example)
    except SynflowError:
        raise
    except Exception as cause:
        shapes = ", ".join(str(tuple(t.shape)) for t in pytree.tree_leaves(example) if isinstance(t, Tensor))
        raise SynflowError(
            f"{type(network.model).__name__} fails on an example of shape {shapes or 'none'}: "
            f"{type(cause).__name__}: {cause}. If the model runs on this example outside of synflow, an operation in "
            "it may need a rule (synflow.register_rule)"
        ) from cause


def _total(output: Any) -> Flow:
    """The sum over all floating outputs: tensors in tuples, dicts or dataclasses."""
    parts = list(_outputs(output))
    if not parts:
        raise SynflowError(
            "no output of the model depends on a floating-point input, an embedding or a prunable weight; "
            f"forward returned {type(output).__name__}"
        )
    exponent = common_exponent(parts)
    total = sum(scaled(part.as_subclass(Tensor).sum(), part.exponent - exponent) for part in parts)
    assert isinstance(total, Tensor)
    return as_flow(total, exponent, either(parts))


def _outputs(output: Any) -> Any:
    if isinstance(output, Flow):
        yield output if output.spread is None else folding.unfolded(output)
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _outputs(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from _outputs(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for item in dataclasses.fields(output):
            yield from _outputs(getattr(output, item.name))


def _scores(
    total: Flow, leaves: Mapping[str, Flow], lazy: Mapping[str, Sensitivity] | None, inputs: list[Tensor]
) -> dict[str, Tensor]:
    """|w| dR/d|w| for each weight; each gradient is used and freed as soon as it is there, or kept for later."""
    scores: dict[str, Tensor] = {}

    def receive(name: str, leaf: Tensor) -> None:
        if leaf.grad is None:
            return  # left as factors
        # Not in place: the backward pass, still under way, may hand the same tensor to another leaf.
        gradient, leaf.grad = leaf.grad.as_subclass(Tensor), None
        if lazy is not None:
            lazy[name].add_dense(gradient.detach())
        else:
            scores[name] = gradient * leaf.detach().as_subclass(Tensor)

    for name, leaf in leaves.items():
        leaf.register_post_accumulate_grad_hook(partial(receive, name))
    if total.requires_grad:
        torch.autograd.backward(total, inputs=[*leaves.values(), *inputs])
    if lazy is not None:
        return {}
    for name, leaf in leaves.items():
        if name not in scores:
            scores[name] = torch.zeros_like(leaf.detach()).as_subclass(Tensor)
        # Scores are not negative, so one sum finds any that is not finite.
        if not math.isfinite(float(scores[name].sum())):
            raise not_finite(name, scores[name])
    return {name: scores[name] for name in leaves}


def _reached(how: Arithmetic) -> bool:
    """Whether some output depends on some input (True where inputs are not followed, or there are none)."""
    if not how.inputs:
        return True
    return any(leaf.grad is not None and bool(torch.any(leaf.grad.as_subclass(Tensor) != 0)) for leaf in how.inputs)
