"""One pass of the flow: what is asked of it (`PassOptions`), what it finds out, who may step in (`PassHooks`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..support.private_torch import DisableTorchFunction
from .tensor import Degrees, Flow, anything, as_flow, scaled, unblocking


@dataclass(frozen=True)
class PassOptions:
    """How a pass computes: on magnitudes, or just on whether there is a path.

    `shifts` counts vectors that are added on the way (biases, norm shifts); `sources` counts other constants that
    enter (class tokens, position tables). Without both, only terms that start at inputs alone remain. `divide` applies
    divisors; a pass that counts weights per term leaves them out. `saturate` computes in boolean arithmetic: one where
    there is flow, zero where there is none. With `shared`, the two sides of a gate or of attention share the gradient,
    so that weights before many gates do not count 2, 4, 8, ... times. `follow_inputs` differentiates with respect to
    the inputs too, to see whether an output depends on one. `trace` follows degrees (how often a term meets each
    weight tensor) and the flow that leaves each unit. With `norms`, batch norms divide by the mean flow of their
    tensor.
    """

    shifts: bool = True
    sources: bool = True
    divide: bool = True
    saturate: bool = False
    shared: bool = False
    follow_inputs: bool = False
    trace: bool = False
    norms: bool = False


DEFAULT = PassOptions()
# Only terms that start at an input or another source count, not those that start at a bias.
WITHOUT_SHIFTS = PassOptions(shifts=False)
# The two sides of a gate share the gradient, so that no layer counts twice because of it.
SHARED = PassOptions(shared=True)


class PassHooks:
    """Where an engine may step into a pass. As they stand here, every operation goes by its rule and autograd."""

    def begin(self, weights: Mapping[str, Flow]) -> None:
        """The weights of the pass that begins, as the flows that operations will meet."""

    def input(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Flow | None:
        """A flow of ones in a form of the engine's own, or None for a plain one."""
        return None

    def operation(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rule: ByRule
    ) -> Any:
        """The result of an operation on flows in a form of the engine's own; NotImplemented leaves it to the rule."""
        return NotImplemented

    def arguments(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a rule other than a layer's, in a form that every rule can read."""
        return args, kwargs

    def layer(self, function: Callable[..., Any], x: Flow, weight: Flow, settings: tuple[Any, ...]) -> Tensor | None:
        """A layer without its bias, whose weight gradient the engine keeps; None leaves it to autograd."""
        return None

    def output(self, flow: Flow) -> Flow:
        """An output in plain form."""
        return flow

    def gradient(self, name: str, gradient: Tensor) -> None:
        """Take the gradient that autograd made for a weight."""


# The way back from a hook to the table of rules: name, function, positional and keyword arguments.
ByRule = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@dataclass
class FlowPass:
    """A pass under way: what was asked of it, and what it has found so far.

    `watched` maps the id of each weight to its name where the pass traces; `constants` is what rules compute from
    parameters that no pass changes.
    `had_shifts`: a shift counted. `shifts_met`: an operation that may multiply came after it (none follows a bias of
    the last layer). `bent`: a maximum or a divisor came after a shift, so that a score may be smaller than without
    shifts. `loose`: flow came from a source, or a stand-in held part of it fixed, so that the union bound alone proves
    nothing. `faded`: by how many powers of two a flow grew over time, if its type cannot hold all steps. `notes` are
    for the certificate. `inputs` are the leaves of a pass that follows inputs. `unit_flows` is the flow of the units of
    each layer, except for `untapped` weights, which were used outside of a layer too. `mean_flows` are the scales of
    batch norms in a pass with `norms`, each as number and exponent, by the id of the running variance.
    """

    options: PassOptions = DEFAULT
    watched: dict[int, str] | None = None
    constants: dict[Any, Any] = field(default_factory=dict)
    hooks: PassHooks = field(default_factory=PassHooks)
    had_shifts: bool = False
    shifts_met: bool = False
    bent: bool = False
    loose: bool = False
    faded: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    unit_flows: dict[str, Tensor] = field(default_factory=dict)
    untapped: set[str] = field(default_factory=set)
    mean_flows: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

    def note_bend(self) -> None:
        """Say that a maximum or a divisor is at work: a shift before it can lower what else passes."""
        self.bent = self.bent or self.had_shifts

    @property
    def input_reached(self) -> bool:
        """Whether some output depends on some input (true where inputs are not followed, or there are none)."""
        gradients = [leaf.grad.as_subclass(Tensor) for leaf in self.inputs if leaf.grad is not None]
        return not self.inputs or any(bool(torch.any(gradient != 0)) for gradient in gradients)

    def started(self, data: Tensor, degrees: Degrees | None = None) -> Flow:
        """A tensor that starts a flow; a pass that follows inputs will ask for its gradient."""
        if not self.options.follow_inputs:
            return as_flow(data, 0, degrees)
        leaf = as_flow(data.requires_grad_())
        self.inputs.append(leaf)
        # A copy: the model may write into its input, which a leaf refuses. An embedding starts where gradients are off.
        with torch.enable_grad(), DisableTorchFunction():
            return as_flow(leaf.clone())

    def source(self, constant: Tensor, dtype: torch.dtype, exponent: int) -> Tensor:
        """A constant that enters beside the flow: absolute, at the given exponent; where it counts, it is loose."""
        constant = unblocking(constant.detach().to(dtype))
        if not self.options.sources:
            return torch.zeros_like(constant)
        self.loose = self.loose or anything(constant)
        return scaled(constant.abs().nan_to_num(0.0, 0.0, 0.0), -exponent)
