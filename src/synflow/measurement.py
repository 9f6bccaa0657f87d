"""One evaluation of the flow: its value, and the share of it that passes each weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import rules  # noqa: F401  (fills the table of rules)
from .errors import SynflowError
from .flow import Degrees, Flow, as_flow, common_exponent, either, scaled
from .linearization import Arithmetic, LinearizationMode
from .network import Network, isolated


@dataclass(frozen=True)
class Measurement:
    """The flow R = value * 2**exponent, and for each weight its score in units of 2**exponent."""

    value: float
    exponent: int
    scores: dict[str, Tensor]
    had_shifts: bool = False
    notes: tuple[str, ...] = ()
    degrees: Degrees | None = None
    unit_flows: dict[str, Tensor] = field(default_factory=dict)
    loose: bool = False

    @property
    def log2(self) -> float:
        """log2 of the flow, minus infinity where there is none."""
        return math.log2(self.value) + self.exponent if self.value > 0 else -math.inf


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
) -> Measurement:
    """Send ones (or the example's tokens) through the network of absolute masked weights, and score each weight.

    The score is synaptic saliency of the flow, S = |w| dR/d|w|. `power=2` uses squared weights; `shifts=False` follows
    only what starts at an input; `magnitudes * 2**leaf_exponent` replaces |w|; `trace` adds how often
    terms meet each tensor (`degrees`) and the flow that leaves each unit of a layer (`unit_flows`).
    """
    how = arithmetic or Arithmetic(shifts=shifts)
    notes: dict[str, None] = {}
    leaves = {}
    for index, (name, weight) in enumerate(network.weights.items()):
        leaf = _magnitude(name, weight, power, notes) if magnitudes is None else magnitudes[name].clone()
        if masks is not None:
            leaf.mul_(masks[name])
        tracked = _once(len(network.weights), index) if trace else None
        leaves[name] = as_flow(leaf.requires_grad_(gradients), leaf_exponent, tracked)
    with isolated(network.seed, network.device):
        network.model.eval()
        network.replace(leaves)
        dtype = next(iter(leaves.values())).dtype
        cast_rest(network, dtype)
        example = pytree.tree_map(lambda leaf: _input(leaf, dtype, trace, len(leaves)), network.example)
        names = {module: name for name, module in network.model.named_modules()}
        how.watched = {id(leaf): name for name, leaf in leaves.items()} if trace else None
        mode = LinearizationMode(how, names)
        with torch.set_grad_enabled(gradients), mode:
            output = _forward(network, example)
        total = _total(output)
        value = float(total.detach())
        if not math.isfinite(value):
            raise SynflowError(f"the flow of {type(network.model).__name__} is {value}; check weights and statistics")
        scores: dict[str, Tensor] = {}
        units: dict[str, Tensor] = {}
        if gradients:
            found, units = _gradients(total, leaves, how)
            for name, leaf in leaves.items():
                gradient = found[name]
                if gradient is None:
                    scores[name] = torch.zeros_like(leaf.detach()).as_subclass(Tensor)
                else:
                    scores[name] = gradient.mul_(leaf.detach()).as_subclass(Tensor)
                _check_scores(name, scores[name])
    notes.update(how.notes)
    return Measurement(value, total.exponent, scores, how.had_shifts, tuple(notes), total.degrees, units, how.loose)


def _magnitude(name: str, weight: Tensor, power: int, notes: dict[str, None]) -> Tensor:
    """|w| ** power in at least single precision; a tensor that is zero everywhere counts as ones."""
    dtype = weight.dtype if weight.dtype in (torch.float32, torch.float64) else torch.float32
    magnitude = weight.detach().to(dtype).abs()
    if not bool(magnitude.any()):
        notes[f"{name}: zero everywhere, counts as ones"] = None
        return torch.ones_like(magnitude)
    return magnitude if power == 1 else magnitude**power


def _once(count: int, index: int) -> Degrees:
    unit = np.zeros(count, dtype=np.int64)
    unit[index] = 1
    return unit, unit


def _input(leaf: Any, dtype: torch.dtype, degrees: bool, count: int) -> Any:
    """Floating inputs become ones; token ids and masks stay as given."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    zero = np.zeros(count, dtype=np.int64)
    return as_flow(torch.ones(leaf.shape, dtype=dtype, device=leaf.device), 0, (zero, zero) if degrees else None)


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
        shapes = pytree.tree_map(lambda t: tuple(t.shape) if isinstance(t, Tensor) else t, example)
        raise SynflowError(
            f"{type(network.model).__name__} fails on an example of shape {shapes}: {type(cause).__name__}: {cause}. "
            "If the model runs on this example outside of synflow, an operation in it may need a rule "
            "(synflow.register_rule)"
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
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _outputs(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from _outputs(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for item in dataclasses.fields(output):
            yield from _outputs(getattr(output, item.name))


def _gradients(
    total: Flow, leaves: Mapping[str, Flow], how: Arithmetic
) -> tuple[dict[str, Tensor | None], dict[str, Tensor]]:
    """dR/d|w| for each weight, and y dR/dy summed for each unit of the layers that are traced."""
    if not total.requires_grad:
        return dict.fromkeys(leaves), {}
    taps = [tap for tap in how.taps if tap[1].requires_grad]
    found = torch.autograd.grad(total, [*leaves.values(), *(sent for _, sent, _ in taps)], allow_unused=True)
    units: dict[str, Tensor] = {}
    for (name, sent, dimension), gradient in zip(taps, found[len(leaves) :], strict=True):
        if gradient is not None and name not in how.untapped:
            others = [axis for axis in range(sent.dim()) if axis != dimension]
            flow = (sent.detach().as_subclass(Tensor).double() * gradient.double()).sum(others)
            units[name] = units[name] + flow if name in units else flow
    return dict(zip(leaves, found, strict=False)), units


def _check_scores(name: str, scores: Tensor) -> None:
    if not bool(torch.isfinite(scores).all()):
        bad = int((~torch.isfinite(scores)).sum())
        raise SynflowError(
            f"{name}: {bad} of {scores.numel()} flow scores are not finite; a weight or statistic is extreme "
            "(below 1e-38 or above 1e38): rescale it, or score in float64 with model.double()"
        )
