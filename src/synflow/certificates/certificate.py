"""The certificate, measured from model and masks: kept weights, whether a path survives, conservation of the flow."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import SynflowError
from ..flow.measure import measure
from ..flow.passes import WITHOUT_SHIFTS
from ..flow.paths import reach
from ..masks.checks import check_any, check_mapping, full_masks, some
from ..masks.results import StepRecord
from ..network.private_copy import Network, open_network
from ..network.wrappers import unwrap
from ..support.chunked import count
from ..support.numbers import power_of_two, times
from ..support.torch_modes import with_gradients
from .conservation import conservation_of
from .inventory import NEVER_RUN, Part, inventory, inventory_text
from .limits import most_compression


@dataclass(frozen=True)
class LayerRow:
    """A layer of a certificate: its weights, its kept weights, and its kept weights on a path."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    on_path: int

    @property
    def density(self) -> float:
        """The kept share of the weights."""
        return self.kept / self.total


@dataclass(frozen=True)
class Certificate:
    """Facts about a pruned network; `str` is for people, `as_dict` for machines.

    `connected`: an input still reaches an output. `empty_layers` have no weight; a network with skip connections may
    survive that. `dead_layers` have no weight on a path. `never_run` layers had none before pruning either, because the
    forward pass does not reach them or a selection ignores their output; they do not count. `given_up` layers died
    because the count was too small. `idle` weights are kept but lie on no path; `effective_compression` does not count
    them. `flow_log2_before` and `flow_log2` are log2 of the flow from inputs. The residuals are the errors of
    conservation at units and at the layers that are `cuts`. `max_compression` is exact in chains and plain residual
    networks, elsewhere an upper bound. `steps` holds for each step the pruned flow over the flow; below one, the
    condition of Theorem 3 held. `parameters` gives the fate of every parameter of the model.
    """

    total: int
    kept: int
    connected: bool
    empty_layers: tuple[str, ...]
    idle: int
    flow_log2_before: float
    flow_log2: float
    unit_residual: float | None
    layer_residual: float | None
    cuts: tuple[str, ...]
    max_compression: float
    layers: tuple[LayerRow, ...]
    steps: tuple[StepRecord, ...]
    notes: tuple[str, ...]
    parameters: tuple[Part, ...] = ()
    dead_layers: tuple[str, ...] = ()
    never_run: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()

    @property
    def compression(self) -> float:
        """N over the number of kept weights."""
        return self.total / self.kept if self.kept else math.inf

    @property
    def effective_compression(self) -> float:
        """N over the number of weights that lie on a path."""
        return self.total / (self.kept - self.idle) if self.kept > self.idle else math.inf

    @property
    def theorem_held(self) -> bool | None:
        """Whether at every step the pruned flow was less than the flow; None if the steps are not known."""
        known = [step.held for step in self.steps if step.held is not None]
        return all(known) if known else None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        derived = ("compression", "effective_compression", "theorem_held", "dead_layers")
        return {name: getattr(self, name) for name in derived} | asdict(self)

    def __str__(self) -> str:
        compression = f"{times(self.compression)}, max {times(self.max_compression)}"
        connected = "yes, inputs reach outputs" if self.connected else "NO: no path from input to output is left"
        rows = [
            ("weights", f"{self.kept:,} of {self.total:,} kept ({compression})"),
            ("parameters", inventory_text(self.parameters)),
            ("connected", connected),
            ("layers", _layers(self)),
            ("empty layers", some(self.empty_layers)),
            ("dead layers", some(self.dead_layers)),
            ("on no path", f"{self.idle:,} kept weights (effective compression {times(self.effective_compression)})"),
            ("flow", f"{power_of_two(self.flow_log2_before)} before, {power_of_two(self.flow_log2)} after"),
            ("conservation", _residuals(self)),
            ("steps", _steps(self)),
        ]
        rows += [("note", note) for note in self.notes[:3]]
        if len(self.notes) > 3:
            rows.append(("note", f"and {len(self.notes) - 3} more of this kind"))
        lines = [
            textwrap.fill(text, 100, initial_indent=f"  {label:<13} ", subsequent_indent=" " * 16)
            for label, text in rows
        ]
        return "\n".join(["certificate", *lines])


@with_gradients
def certify(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, *, steps: Iterable[StepRecord] | None = None
) -> Certificate:
    """Measure a pruned network, from the model and the masks alone.

    Masks from `prune` contain the record of their steps; pass `steps` with other masks.

    >>> import torch, synflow
    >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    >>> masks = synflow.prune(model, torch.ones(1, 10), compression=10)
    >>> certificate = certify(model, masks, torch.ones(1, 10))
    >>> certificate.connected, certificate.kept, certificate.max_compression
    (True, 30, 150.0)
    """
    model = unwrap(model)
    network = _open(model, masks, example)
    full = full_masks(masks, network.weights)
    reached, at_first = reach(network, full), reach(network)
    on_path = {name: full[name] & reached.on_path[name] for name in full}
    unfed = tuple(name for name in full if name not in reached.live_layers)
    never_run = tuple(name for name in unfed if name not in at_first.live_layers)
    given_up = getattr(masks, "about", {}).get("given_up", "")
    conserved = conservation_of(network, full)
    before = measure(network, options=WITHOUT_SHIFTS, gradients=False)
    after = measure(network, full, options=WITHOUT_SHIFTS, gradients=False)
    records = getattr(masks, "steps", ()) if steps is None else steps
    parts, warnings = inventory(model, full, example)
    return Certificate(
        total=network.size,
        kept=count(full),
        connected=reached.connected,
        empty_layers=tuple(name for name, mask in full.items() if not bool(mask.any())),
        idle=count(full) - count(on_path),
        flow_log2_before=before.log2,
        flow_log2=after.log2,
        unit_residual=conserved.unit_residual,
        layer_residual=conserved.layer_residual,
        cuts=conserved.cuts,
        max_compression=most_compression(network),
        layers=tuple(
            LayerRow(name, tuple(mask.shape), mask.numel(), int(mask.sum()), int(on_path[name].sum()))
            for name, mask in full.items()
        ),
        steps=tuple(step.record if hasattr(step, "record") else step for step in records),
        notes=(*warnings, *after.notes),
        parameters=parts,
        dead_layers=tuple(name for name in unfed if name not in never_run),
        never_run=never_run,
        given_up=tuple(name for name in given_up.split(", ") if name in full),
    )


def _open(model: nn.Module, masks: Mapping[str, Tensor], example: Any) -> Network:
    """The network of the weights that have a mask."""
    check_mapping(masks, "; the order is certify(model, masks, example)")
    check_any(masks, "certify")
    if unknown := sorted(set(masks) - {name for name, _ in model.named_parameters()}):
        raise SynflowError(f"masks name {unknown[0]!r}, which is no parameter of this {type(model).__name__}")
    return open_network(model, example, select=lambda name, _: name in masks)


def _layers(certificate: Certificate) -> str:
    """The number of live layers, the layers that the guard gave up, and the layers that do not count."""
    dead, total = certificate.dead_layers, len(certificate.layers) - len(certificate.never_run)
    text = f"{total - len(dead)} of {total} have a weight on a path"
    if given_up := [name for name in dead if name in certificate.given_up]:
        text += f"; given up, as the count left no room: {some(given_up)}"
    idle = {name for part in certificate.parameters if part.fate == NEVER_RUN for name in part.names}
    if unread := [name for name in certificate.never_run if name in idle]:
        text += f"; never run by the forward pass, not counted: {some(unread)}"
    if passed := [name for name in certificate.never_run if name not in idle]:
        text += f"; run, but no flow passes them (a selection takes none of it), not counted: {some(passed)}"
    return text


def _residuals(certificate: Certificate) -> str:
    parts = []
    if certificate.unit_residual is not None:
        parts.append(f"units within {certificate.unit_residual:.0e}")
    if certificate.layer_residual is not None:
        cuts = f"{len(certificate.cuts)} of {len(certificate.layers)} layers are cuts"
        parts.append(f"{cuts}, within {certificate.layer_residual:.0e}")
    return "; ".join(parts) or ("nothing to check" if certificate.connected else "no flow")


def _steps(certificate: Certificate) -> str:
    if not certificate.steps:
        return "not recorded"
    flow_steps = [(step, step.pruned_fraction) for step in certificate.steps if step.pruned_fraction is not None]
    if not flow_steps:
        return f"{len(certificate.steps)} (not by flow, so nothing is promised)"
    worst, held = max(share for _, share in flow_steps), sum(bool(step.held) for step, _ in flow_steps)
    text = f"Theorem 3's condition held in {held} of {len(flow_steps)} (pruned flow / flow at most {worst:.3g})"
    split = sum(step.substeps > 1 for step, _ in flow_steps)
    return text + (f"; {split} split by the guard" if split else "")
