"""From the units that go to what is cut: indices to keep, sizes to remember, and a list of what stayed."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from torch import Tensor, nn

from ..reason.coupling import Coupling
from ..reason.units import Units
from ..record.aten_names import FACTORIES, PARTS, VIEWS
from ..record.tape import Step, Tape
from ..result import Stayed
from .surgery import Indices

__all__ = ["POLICIES", "families", "kept_indices", "listed_sizes", "remembered_sizes", "stayed"]

_PLAIN = (nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._NormBase, nn.Embedding, nn.RNNBase, nn.PReLU)
_SIZED = VIEWS | PARTS | FACTORIES | {"expand"}
# Which numbers that a module remembers are sizes that have changed can only be told by their names, or by trying: a
# table of 32 buckets is no width of 32, and of two heads of two channels perhaps only the heads have changed. A policy
# says which names are taken for sizes, and which of them if sizes of one number have changed differently.
_SIZE = r"head|dim|size|width|inner|embed|hidden|feature|channel|chs|group|split|planes|^nf$|^n_|^[a-z]$"
_HEADS = r"^(?!.*(dim|size|width)).*heads?$"  # how many; `dim_head` is how wide
POLICIES = tuple(
    (re.compile(sure), re.compile(doubtful))
    for sure, doubtful in ((_SIZE, _HEADS), ("", _HEADS), (_SIZE, rf"{_HEADS}|groups?$"), ("", ""), (_SIZE, "$^"))
)
Policy = tuple[re.Pattern[str], re.Pattern[str]]


def kept_indices(coupling: Coupling, gone: Tensor) -> tuple[dict[str, dict[int, Indices]], dict[str, tuple[int, ...]]]:
    """Indices to keep, for every parameter and buffer that loses any, and their dense shapes."""
    kept: dict[str, dict[int, Indices]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for number, name in coupling.tape.leaves.items():
        axes = coupling.axes.get(number, [])
        dims: dict[int, Indices] = {}
        for dim, ids in enumerate(axes):
            if ids is None or not bool(gone[ids].any()):
                continue
            lines = ids.movedim(dim, -1).reshape(-1, ids.shape[dim])
            if len(lines) > 1:  # ragged: the lines belong to the rows of the first dimension
                rows = axes[0]
                assert rows is not None
                lines = lines[~gone[rows.flatten()]]
            dims[dim] = _per_group([(~gone[line]).nonzero().flatten().tolist() for line in lines])
        if dims:
            kept[name] = dims
            shapes[name] = coupling.tape.shapes[number]
    return kept, shapes


def _per_group(lines: list[list[int]]) -> Indices:
    """Lists that are the same for all rows of a group are written once per group, or once if there is only one."""
    count = len(lines)
    size = next(
        s for s in range(count, 0, -1) if count % s == 0 and all(lines[i] == lines[i - i % s] for i in range(count))
    )
    return lines[0] if size == count else lines[::size]


def remembered_sizes(
    model: nn.Module, coupling: Coupling, gone: Tensor, policy: Policy
) -> dict[str, dict[str, int | tuple[int, ...]]]:
    """Sizes and shapes that modules use in reshaping, such as the number of heads, where they have changed.

    An attribute is a size if it equals that of a dimension of something the module reshapes, cuts or makes, and a shape
    if it equals that of all dimensions. Where sizes of one number have changed differently the attribute takes the
    smallest, if the policy lets it.
    """
    sizes: dict[str, dict[int, set[int]]] = {}
    shapes: dict[str, dict[tuple[int, ...], set[tuple[int, ...]]]] = {}
    for step in coupling.tape.steps:
        for number in step.outputs if step.name in _SIZED else ():
            if number not in coupling.axes:
                continue
            shape = coupling.tape.shapes[number]
            axes = enumerate(coupling.axes[number])
            left = tuple(shape[dim] if ids is None else _size(ids, dim, gone) for dim, ids in axes)
            for before, after in zip(shape, left, strict=True):
                sizes.setdefault(step.module, {}).setdefault(before, set()).add(after)
            shapes.setdefault(step.module, {}).setdefault(shape, set()).add(left)
        if "with_sizes" in step.name and step.module in coupling.listed:
            dim = step.args["dim"] % len(coupling.tape.shapes[step.inputs[0]])
            parts = [coupling.axes[number][dim] for number in step.outputs]
            lengths = _lengths(step, coupling.tape)
            shorter = (n if ids is None else _size(ids, dim, gone) for n, ids in zip(lengths, parts, strict=True))
            shapes[step.module].setdefault(lengths, set()).add(tuple(shorter))
    found: dict[str, dict[str, int | tuple[int, ...]]] = {}
    for path, changes in sizes.items():
        for part, owner in _owners(model, path, sizes):
            for name, value in vars(owner).items():
                if name.startswith("_"):
                    continue
                if type(value) is int:
                    new = changes.get(value, {value})
                    if new != {value} and policy[len(new) > 1].search(name):
                        found.setdefault(part, {})[name] = min(new)
                elif type(value) is tuple and all(type(n) is int for n in value):
                    others = shapes[path].get(value, set()) - {value}
                    if len(others) == 1:
                        found.setdefault(part, {})[name] = others.pop()
    return found


def listed_sizes(model: nn.Module, tape: Tape) -> frozenset[str]:
    """Modules that cut tensors by lists of sizes which they remember, all of them as tuples, so they can be changed."""
    lists: dict[str, set[tuple[int, ...]]] = {}
    for step in tape.steps:
        if "with_sizes" in step.name:
            lists.setdefault(step.module, set()).add(_lengths(step, tape))
    return frozenset(
        path for path, used in lists.items()
        if used <= {value for value in vars(model.get_submodule(path)).values() if type(value) is tuple}
    )  # fmt: skip


def _lengths(step: Step, tape: Tape) -> tuple[int, ...]:
    dim = step.args["dim"] % len(tape.shapes[step.inputs[0]])
    return tuple(tape.shapes[number][dim] for number in step.outputs)


def _owners(model: nn.Module, path: str, called: Container[str]) -> Iterator[tuple[str, nn.Module]]:
    """A module and those of its parts that it asks by other methods than forward, so that their steps count as its."""
    module = model.get_submodule(path)
    parts = [(f"{path}.{name}".strip("."), part) for name, part in module.named_children()]
    for place, owner in ((path, module), *((place, part) for place, part in parts if place not in called)):
        if not isinstance(owner, (*_PLAIN, nn.MultiheadAttention)):
            yield place, owner


def _size(ids: Tensor, dim: int, gone: Tensor) -> int:
    """How many indices are left along a dimension, in a line that is not gone as a whole."""
    return int((~gone[ids.movedim(dim, -1).reshape(-1, ids.shape[dim])]).sum(1).max())


def families(coupling: Coupling) -> dict[int, list[int]]:
    """Units that lie along a common dimension of a parameter, directly or through others, by family."""
    units = coupling.units
    parent = coupling.roots.tolist()

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
    found: dict[int, list[int]] = {}
    for unit in range(len(parent)):
        found.setdefault(find(unit), []).append(unit)
    return found


def _why(units: Units, unit: int) -> str | None:
    """Why a unit stays; a whole stays because both its row (head, group) and its column (place in it) do."""
    root = units.find(unit)
    reason = units.reasons.get(root) or units.asides.get(root)
    if reason is None:
        parts = units.children.get(unit) or units.children.get(root) or ()
        reasons = [why for part in parts if (why := _why(units, part))]
        reason = "; ".join(dict.fromkeys(reasons)) or None
    return reason


def stayed(coupling: Coupling, gone: Tensor, dead: Tensor) -> tuple[Stayed, ...]:
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
                reason = _why(units, unit) or "it is tied to units that stay"
                counts.setdefault(reason, set()).add(root)
                place = f"{name} dimension {dim}"
                if place not in where.setdefault(reason, []):
                    where[reason].append(place)
    return tuple(Stayed(reason, len(counts[reason]), tuple(where[reason])) for reason in counts)
