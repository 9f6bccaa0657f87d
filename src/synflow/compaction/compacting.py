"""The smaller network: units that cannot be noticed from outside are removed, outputs and training stay the same.

The model runs once in each mode and is written down (`tape`); what is always zero is proved (`liveness`), dimensions
that shrink together are found (`coupling`), the largest removable set of units is chosen (`removal`) and cut out
(`surgery`); then both networks are compared in double precision (`verification`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from ..masks import attach, bake
from .coupling import Coupling, couple
from .liveness import liveness
from .record import Compaction, Stayed
from .removal import choose_units
from .surgery import Indices, cut, shrink, tensors
from .tape import Tape, mark_outputs, recording
from .verification import DifferenceError, compare, double, first_difference, inputs_like, run

__all__ = ["compact"]

Model = TypeVar("Model", bound=nn.Module)


def compact(model: Model, example: Any, masks: Mapping[str, Tensor] | None = None) -> Model:
    """A smaller copy of a masked model with the same outputs, now and at every step of training.

    `masks` default to the attached ones. A unit goes when nothing it sends is read, or when it always sends zero and
    would go on doing so in training; what cannot be proved stays, and `small.compaction` says why. The masks of the
    surviving weights are attached to the result. The model itself is not changed.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> masks = {"2.weight": torch.tensor([[True, False, False, True]] * 2)}
    >>> small = compact(model, torch.ones(1, 3), masks)
    >>> small
    Sequential(
      (0): Linear(in_features=3, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True, density=1.0)
    )
    >>> small.compaction.kept["0.weight"]
    {0: [0, 3]}
    """
    masked, masks = _masked_copy(model, masks)
    trial = _Trial(masked, masks, example)
    compaction = trial.solve()
    small = masked
    shrink(small, compaction.kept, compaction.attributes)
    if masks:
        attach(small, {name: cut(mask, compaction.kept.get(name, {})) for name, mask in masks.items()})
    object.__setattr__(small, "compaction", compaction)
    return small


def _masked_copy(model: Model, masks: Mapping[str, Tensor] | None) -> tuple[Model, dict[str, Tensor]]:
    """A plain copy with zeros in place, and the masks, those that are attached included."""
    if not isinstance(model, nn.Module):
        raise SynflowError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    plain = copy.deepcopy(model)
    own = bake(plain)
    if masks is None and not own:
        raise SynflowError("the model has no masks; attach them first, or pass masks=synflow.prune(model, example)")
    weights = dict(plain.named_parameters())
    for name, mask in (masks or {}).items():
        if name not in weights:
            raise SynflowError(f"masks: no parameter {name!r} in {type(model).__name__}; names are those of "
                               "model.named_parameters(), a tied weight under its first name")  # fmt: skip
        if mask.shape != weights[name].shape or mask.dtype != torch.bool:
            raise SynflowError(
                f"masks[{name!r}]: expected a boolean tensor of shape {tuple(weights[name].shape)}, "
                f"got {mask.dtype} {tuple(mask.shape)}"
            )
        mask = mask.to(weights[name].device)
        own[name] = own[name] & mask if name in own else mask.clone()
    with torch.no_grad():
        for name, mask in own.items():
            weights[name].masked_fill_(~mask, 0)
    if hasattr(plain, "compaction"):
        del plain.compaction
    return plain, own


class _Trial:
    """One model under compaction: what was found out about it, and attempts at cutting it."""

    def __init__(self, masked: nn.Module, masks: Mapping[str, Tensor], example: Any) -> None:
        self.reference = double(copy.deepcopy(masked))
        self.masks = {name: mask.cpu() for name, mask in masks.items()}
        self.example = example
        self.notes: list[str] = []
        self.repeat = 1
        self.modes: tuple[str, ...] = ("eval", "train")
        self.tape = self.record()
        self.coupling: Coupling = couple(self.tape)
        self.alive = liveness(self.tape, tensors(self.reference), self.masks)
        self.failure: Exception | None = None

    def record(self) -> Tape:
        tape = Tape()
        work = copy.deepcopy(self.reference)
        with recording(work, tape, training=False):
            mark_outputs(tape, run(work, inputs_like(self.example, None), False))
        for repeat in (1, 2):
            snapshot = copy.deepcopy(tape)
            try:
                with recording(work, tape, training=True):
                    mark_outputs(tape, run(work, inputs_like(self.example, None, repeat), True))
            except Exception as cause:
                tape, problem = snapshot, cause
            else:
                self.repeat = repeat
                return tape
        self.modes = ("eval",)
        self.notes.append(f"train mode does not run on the example, so only eval mode was looked at: {problem}")
        return tape

    def solve(self) -> Compaction:
        """The best plan that passes the check; parts of it that fail are left out and noted."""
        plan = self.attempt(frozenset())
        if plan is None:
            plan = self.search()
        return plan

    def search(self) -> Compaction:
        """Leave out the families of units that make the check fail."""
        first = self.failure
        gone, _ = choose_units(self.coupling, self.alive)
        families = _families(self.coupling)
        going = sorted({family for family, leaves in families.items() if any(bool(gone[u]) for u in leaves)})

        def frozen(accepted: Iterable[int]) -> frozenset[int]:
            left_out = set(going) - set(accepted)
            return frozenset(u for family in left_out for u in families[family])

        def grow(accepted: list[int], candidates: list[int]) -> list[int]:
            if self.attempt(frozen([*accepted, *candidates]), quick=True) is not None:
                return [*accepted, *candidates]
            if len(candidates) == 1:
                return accepted
            half = len(candidates) // 2
            return grow(grow(accepted, candidates[:half]), candidates[half:])

        accepted = grow([], going) if going else []
        plan = self.attempt(frozen(accepted))
        if plan is None:
            raise SynflowError(f"the compact model is not the masked one: {self.failure}") from self.failure
        left = len(going) - len(accepted)
        note = f"{left} of {len(going)} families of units stay, since without them the model fails the check: {first}"
        return replace(plan, notes=(*plan.notes, note))

    def attempt(self, frozen: frozenset[int], quick: bool = False) -> Compaction | None:
        gone, dead = choose_units(self.coupling, self.alive, set(frozen))
        kept, shapes = _kept(self.coupling, gone)
        attributes = _attributes(self.reference, self.coupling, gone)
        small = copy.deepcopy(self.reference)
        shrink(small, kept, attributes)
        try:
            worst = self.check(small, kept, quick)
        except Exception as cause:
            self.failure = cause
            return None
        parameters = tuple(sum(p.numel() for p in m.parameters()) for m in (self.reference, small))
        return Compaction(
            kept, shapes, attributes, (parameters[0], parameters[1]), _stayed(self.coupling, gone, dead),
            tuple(self.notes), worst, self.modes,
        )  # fmt: skip

    def check(self, small: nn.Module, kept: Mapping[str, Mapping[int, Indices]], quick: bool) -> float:
        worst = 0.0
        for mode in self.modes:
            for seed in (1,) if quick else (None, 1, 2):
                inputs = inputs_like(self.example, seed, self.repeat if mode == "train" else 1)
                reference, twin = copy.deepcopy(self.reference), copy.deepcopy(small)
                training = mode == "train"
                try:
                    worst = max(worst, compare(reference, twin, kept, self.masks, inputs, training, seed != 2))
                except DifferenceError as difference:
                    layer = first_difference(
                        copy.deepcopy(self.reference), copy.deepcopy(small), kept, inputs, training
                    )  # fmt: skip
                    raise DifferenceError(
                        f"{difference} in {mode} mode; the first layer that differs is {layer}"
                    ) from None
        return worst


def _kept(coupling: Coupling, gone: Tensor) -> tuple[dict[str, dict[int, Indices]], dict[str, tuple[int, ...]]]:
    """Indices to keep, for every parameter and buffer that loses any."""
    kept: dict[str, dict[int, Indices]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for number, name in coupling.tape.leaves.items():
        axes = coupling.axes.get(number, [])
        dims: dict[int, Indices] = {}
        for dim, ids in enumerate(axes):
            if ids is None or not bool(gone[ids].any()):
                continue
            flat = ids.movedim(dim, -1).reshape(-1, ids.shape[dim])
            if len(flat) == 1:
                dims[dim] = (~gone[flat[0]]).nonzero().flatten().tolist()
                continue
            rows = axes[0]
            assert rows is not None
            lines = flat[~gone[rows.flatten()]]
            distinct = [(~gone[line]).nonzero().flatten().tolist() for line in lines]
            dims[dim] = distinct
        if dims:
            kept[name] = _grouped(dims)
            shapes[name] = coupling.tape.shapes[number]
    return kept, shapes


def _grouped(dims: dict[int, Indices]) -> dict[int, Indices]:
    """Lists that are the same for all rows of a group are written once per group."""
    for dim, indices in dims.items():
        if indices and isinstance(indices[0], list):
            size = next(s for s in range(len(indices), 0, -1) if len(indices) % s == 0 and all(
                indices[i] == indices[i - i % s] for i in range(len(indices))
            ))  # fmt: skip
            lines = indices[::size]
            dims[dim] = lines[0] if len(lines) == 1 else lines  # type: ignore[assignment]
    return dims


def _attributes(model: nn.Module, coupling: Coupling, gone: Tensor) -> dict[str, dict[str, int]]:
    """Sizes that modules use in reshaping, such as the number of heads, where the size has changed."""
    sizes: dict[str, dict[int, set[int]]] = {}
    for step in coupling.tape.steps:
        for number in (*step.inputs, *step.outputs):
            if number in coupling.tape.leaves:
                continue
            for dim, ids in enumerate(coupling.axes.get(number, [])):
                if ids is not None:
                    sizes.setdefault(step.module, {}).setdefault(ids.shape[dim], set()).add(_size(ids, dim, gone))
    attributes: dict[str, dict[str, int]] = {}
    for path, changes in sizes.items():
        module = model.get_submodule(path)
        if next(module.parameters(recurse=False), None) is not None and isinstance(module, _PLAIN):
            continue
        for name, value in vars(module).items():
            if type(value) is int and not name.startswith("_"):
                new = changes.get(value, set()) - {value}
                if len(new) == 1:
                    attributes.setdefault(path, {})[name] = new.pop()
    return attributes


_PLAIN = (nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._NormBase, nn.Embedding, nn.RNNBase, nn.PReLU)


def _size(ids: Tensor, dim: int, gone: Tensor) -> int:
    """How many indices are left along a dimension, in a line that is not gone as a whole."""
    return int((~gone[ids.movedim(dim, -1).reshape(-1, ids.shape[dim])]).sum(1).max())


def _families(coupling: Coupling) -> dict[int, list[int]]:
    """Units that lie along a common dimension of a parameter, directly or through others, by family."""
    units = coupling.units
    parent = units.roots(torch.arange(len(units.parent))).tolist()

    def find(unit: int) -> int:
        while parent[unit] != unit:
            parent[unit] = parent[parent[unit]]
            unit = parent[unit]
        return unit

    groups = [
        ids.flatten().tolist()
        for number in coupling.tape.leaves for ids in coupling.axes.get(number, []) if ids is not None
    ]  # fmt: skip
    groups += [list(triple) for joint in units.joints for triple in zip(*(t.tolist() for t in joint), strict=True)]
    for group in groups:
        for unit in group[1:]:
            a, b = find(group[0]), find(unit)
            parent[max(a, b)] = min(a, b)
    families: dict[int, list[int]] = {}
    for unit in range(len(parent)):
        families.setdefault(find(unit), []).append(unit)
    return families


def _stayed(coupling: Coupling, gone: Tensor, dead: Tensor) -> tuple[Stayed, ...]:
    """Dead units that are kept, by reason."""
    units = coupling.units
    counts: dict[str, set[int]] = {}
    where: dict[str, list[str]] = {}
    for number, name in coupling.tape.leaves.items():
        for dim, ids in enumerate(coupling.axes.get(number, [])):
            if ids is None:
                continue
            for unit in ids.unique()[(dead & ~gone)[ids.unique()]].tolist():
                root = units.find(unit)
                reason = units.reasons.get(root, "as many must stay in every group or head, and at least one")
                counts.setdefault(reason, set()).add(root)
                place = f"{name} dimension {dim}"
                if place not in where.setdefault(reason, []):
                    where[reason].append(place)
    return tuple(Stayed(reason, len(counts[reason]), tuple(where[reason])) for reason in counts)
