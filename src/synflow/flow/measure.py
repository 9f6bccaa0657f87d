"""One evaluation of the flow: its value, and the share of it that passes each weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors

from ..errors import SynflowError
from ..network.private_copy import Network, arguments, isolated, restoring, whole_copy
from ..support.chunked import keeps_all
from ..support.private_torch import pytree
from ..support.torch_modes import plain_tensors
from . import rules  # noqa: F401  (fills the table of rules)
from .dispatch import LinearizationMode, forward_only
from .passes import DEFAULT, FlowPass, PassHooks, PassOptions
from .tensor import Degrees, Flow, as_flow, common_exponent, either, number, scaled


@dataclass(frozen=True)
class Measurement:
    """The flow R = value * 2**exponent, and for each weight its score in units of 2**exponent.

    `total` is the value as a tensor. A measurement with hooks has no scores: the hooks took the gradients.
    """

    value: float
    exponent: int
    scores: dict[str, Tensor]
    had_shifts: bool = False
    shifts_met: bool = False
    notes: tuple[str, ...] = ()
    degrees: Degrees | None = None
    unit_flows: dict[str, Tensor] = field(default_factory=dict)
    loose: bool = False
    bent: bool = False
    input_reached: bool = True
    total: Tensor | None = None
    mean_flows: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

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
    options: PassOptions = DEFAULT,
    gradients: bool = True,
    magnitudes: Mapping[str, Tensor] | None = None,
    leaf_exponent: int = 0,
    hooks: PassHooks | None = None,
) -> Measurement:
    """Send ones (or the example's tokens) through the network of absolute masked weights, and score each weight.

    The score is synaptic saliency of the flow, S = |w| dR/d|w|. `power=2` uses squared weights; `options` say how the
    pass computes; `magnitudes * 2**leaf_exponent` stands in for the absolute masked weights; `hooks` let an engine
    step in. With `options.trace` the result has `degrees` and `unit_flows`.
    """
    notes: dict[str, None] = {}
    if magnitudes is None:
        magnitudes = absolute(network, masks, power, notes)
    follow, copies = gradients or options.follow_inputs, "writes into what it used"
    with isolated(network.seed, network.device):
        while True:
            leaves = _leaves(magnitudes, leaf_exponent, gradients, options.trace)
            watched = {id(leaf): name for name, leaf in leaves.items()} if options.trace else None
            found = FlowPass(options, watched, network.constants, hooks or PassHooks(), notes=notes)
            try:
                with allow_mutation_on_saved_tensors() if copies in network.constants else nullcontext():
                    total, value = _run(network, found, leaves, follow)
                    scores = _scores(total, leaves if gradients else {}, hooks, found.inputs) if follow else {}
                break
            except RuntimeError as error:
                # A model that writes into a tensor after its use (a state, layer by layer) cannot be differentiated as
                # it is: from now on, what the backward pass needs is copied before it is written to.
                if "modified by an inplace operation" not in str(error) or copies in network.constants:
                    raise
            network.constants[copies] = True
        network.put_back()  # the copy must not keep the magnitudes alive
    units = {name: flow for name, flow in found.unit_flows.items() if name not in found.untapped}
    return Measurement(
        value, total.exponent, scores, found.had_shifts, found.shifts_met, tuple(notes), total.degrees, units,
        found.loose, found.bent, found.input_reached, total.detach().as_subclass(Tensor), found.mean_flows,
    )  # fmt: skip


def _leaves(magnitudes: Mapping[str, Tensor], exponent: int, gradients: bool, trace: bool) -> dict[str, Flow]:
    """The weights as flows; a traced weight is met once by a term that passes it."""
    once, leaves = np.eye(len(magnitudes), dtype=np.int64), {}
    for unit, (name, magnitude) in zip(once, magnitudes.items(), strict=True):
        leaves[name] = as_flow(magnitude.detach().requires_grad_(gradients), exponent, (unit, unit) if trace else None)
        leaves[name].is_weight = True
    return leaves


def _run(network: Network, flow_pass: FlowPass, leaves: Mapping[str, Flow], follow: bool) -> tuple[Flow, float]:
    """The forward pass with the leaves in the places of the weights; the sum of all outputs, and as a number."""
    hooks, dtype, zero = flow_pass.hooks, precision(leaves), np.zeros(len(leaves), dtype=np.int64)
    network.model.eval()
    network.replace(leaves)
    hooks.begin(leaves)
    cast_rest(network, dtype)

    def begin(leaf: Any) -> Any:
        """Floating inputs become ones; token ids and masks stay as given."""
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        ones = hooks.input(leaf.shape, dtype, leaf.device)
        if ones is not None:
            return ones
        degrees = (zero, zero) if flow_pass.options.trace else None
        return flow_pass.started(torch.ones(leaf.shape, dtype=dtype, device=leaf.device), degrees)

    names = {module: name for name, module in network.model.named_modules()}
    mode = LinearizationMode(flow_pass, names, follow)
    example = pytree.tree_map(begin, network.example)
    try:
        with torch.no_grad(), forward_only(), mode:
            output = network.call(example)
    except SynflowError:
        raise
    except Exception as cause:
        raise _failed(network, cause) from cause
    total = _total(output, hooks)
    value = number(total.detach())
    if not math.isfinite(value):
        raise SynflowError(f"the flow of {type(network.model).__name__} is {value}; check weights and statistics")
    return total, value


def precision(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The type in which a network is scored: double precision if any of its weights has it, else single."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors.values()) else torch.float32


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
    dtype, result = precision(network.weights), {}
    for name, weight in network.weights.items():
        if only is not None and name not in only:
            continue
        # In the order of the indices, whatever the memory format: positions are flat.
        own = half and dtype == torch.float32
        magnitude = weight.detach().to(weight.dtype if own else dtype).abs().contiguous()
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


def cast_rest(network: Network, dtype: torch.dtype) -> None:
    """Half-precision biases, norms and buffers of the copy in the precision of the scores."""
    for module in network.model.modules():
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for table in tables:
            for key, tensor in table.items():
                rest = tensor is not None and not isinstance(tensor, Flow) and tensor.is_floating_point()
                if rest and tensor.dtype != dtype:
                    cast = tensor.detach().to(dtype)
                    table[key] = torch.nn.Parameter(cast, False) if isinstance(tensor, torch.nn.Parameter) else cast


def _failed(network: Network, cause: Exception) -> SynflowError:
    """The error for a forward pass that failed; whether the model is to blame is found by running it as it is."""
    shapes = ", ".join(str(tuple(t.shape)) for t in pytree.tree_leaves(network.example) if isinstance(t, Tensor))
    network.put_back()
    args, kwargs = arguments(network.example)
    advice = "Outside of synflow the model runs on it, so an operation may need a rule (synflow.register_rule)"
    try:
        with torch.no_grad():
            whole_copy(network.model).eval()(*args, **kwargs)
    except Exception as own:
        cause = own
        advice = (
            "Outside of synflow the model fails on it too, in eval mode. Give an example on which model.eval() runs: "
            'positional or keyword arguments, settings included, such as {"input_ids": ids, "use_cache": False}'
        )
    return SynflowError(
        f"{type(network.model).__name__} fails on an example of shape {shapes or 'none'}: "
        f"{type(cause).__name__}: {str(cause).rstrip('.')}. {advice}"
    )


def _total(output: Any, hooks: PassHooks) -> Flow:
    """The sum over all floating outputs: tensors in tuples, dicts or dataclasses; losses if there is nothing else."""
    parts = [hooks.output(part) for part in _outputs(output)]
    parts = [part for part in parts if part.dim()] or parts
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
    if isinstance(output, Mapping):
        output = list(output.values())
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        output = [getattr(output, item.name) for item in dataclasses.fields(output)]
    for part in output if isinstance(output, (tuple, list)) else ():
        yield from _outputs(part)


def _scores(
    total: Flow, leaves: Mapping[str, Flow], hooks: PassHooks | None, inputs: list[Tensor]
) -> dict[str, Tensor]:
    """|w| dR/d|w| for each weight; each gradient is used and freed as soon as it is there, or given to the hooks."""
    scores: dict[str, Tensor] = {}

    def receive(name: str, leaf: Tensor) -> None:
        if leaf.grad is None:
            return  # the hooks kept the gradient
        # Not in place: the backward pass, still under way, may hand the same tensor to another leaf.
        gradient, leaf.grad = leaf.grad.as_subclass(Tensor), None
        if hooks is not None:
            hooks.gradient(name, gradient.detach())
        else:
            scores[name] = gradient * leaf.detach().as_subclass(Tensor)

    for name, leaf in leaves.items():
        leaf.register_post_accumulate_grad_hook(partial(receive, name))
    if total.requires_grad:
        torch.autograd.backward(total, inputs=[*leaves.values(), *inputs])
    if hooks is not None:
        return {}
    for name, leaf in leaves.items():
        if name not in scores:
            scores[name] = torch.zeros_like(leaf.detach()).as_subclass(Tensor)
        # Scores are not negative, so one sum finds any that is not finite.
        if not math.isfinite(float(scores[name].sum())):
            raise not_finite(name, scores[name])
    return {name: scores[name] for name in leaves}


def not_finite(name: str, scores: Tensor) -> SynflowError:
    """The error for scores that overflowed."""
    bad = int((~torch.isfinite(scores)).sum())
    return SynflowError(
        f"{name}: {bad} of {scores.numel()} flow scores are not finite; a weight or statistic is extreme "
        "(below 1e-38 or above 1e38): rescale it, or score in float64 with model.double()"
    )
