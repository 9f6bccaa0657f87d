"""What removing units means for the model: indices to keep, new sizes of modules, and dead units that stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..reason.coupling import Coupling
from ..reason.units import Units
from ..record.attributes import Attribute
from ..result import Stayed
from .attention import Indices
from .surgery import cut


def kept_indices(coupling: Coupling, gone: Tensor) -> tuple[dict[str, dict[int, Indices]], dict[str, tuple[int, ...]]]:
    """Indices to keep for every parameter and buffer that loses some, and their dense shapes."""
    kept: dict[str, dict[int, Indices]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for number, name in coupling.tape.leaves.items():
        axes = coupling.axes.get(number, [])
        for dim, ids in enumerate(axes):
            if ids is None or not bool(gone[ids].any()):
                continue
            lines = ids.movedim(dim, -1).reshape(-1, ids.shape[dim])
            if len(lines) > 1:  # ragged: the lines belong to the rows of the first dimension
                rows = axes[0]
                assert rows is not None
                lines = lines[~gone[rows.flatten()]]
            indices = [(~gone[line]).nonzero().flatten().tolist() for line in lines]
            kept.setdefault(name, {})[dim] = _per_group(indices)
            shapes[name] = coupling.tape.shapes[number]
    return kept, shapes


def _per_group(lines: list[list[int]]) -> Indices:
    """One list per group of rows that share it; a single list if all rows share it."""
    count, size = len(lines), len(lines)
    while count % size or any(lines[i] != lines[i - i % size] for i in range(count)):
        size -= 1
    return lines[0] if size == count else lines[::size]


def kept_in_all(
    shape: tuple[int, ...], first: Mapping[int, Indices], second: Mapping[int, Indices]
) -> dict[int, Indices]:
    """What is kept of a tensor that is cut twice.

    >>> kept_in_all((4, 3), {0: [0, 2, 3]}, {0: [1, 2], 1: [2]})
    {0: [2, 3], 1: [2]}
    """
    places = cut(cut(torch.arange(torch.Size(shape).numel()).reshape(shape), first), second)
    kept: dict[int, Indices] = {}
    for dim in sorted(first.keys() | second.keys()):
        indices = places // torch.Size(shape[dim + 1 :]).numel() % shape[dim]
        rows = len(places) if dim else 1  # indices may differ between the rows, which are in groups then
        kept[dim] = _per_group(indices.movedim(dim, -1).reshape(rows, -1, indices.shape[dim])[:, 0].tolist())
    return kept


def remembered_sizes(model: nn.Module, coupling: Coupling, gone: Tensor) -> dict[str, dict[str, Any]]:
    """Sizes that modules remember, such as a number of heads, where they change, by path and name.

    An attribute counts as a size where the tape shows that it only gives dimensions their size, always the same one.
    """
    tape = coupling.tape
    found: dict[Attribute, set[int]] = {}
    for (number, dim), attribute in tape.sizes.items():
        if number in coupling.axes:
            ids = coupling.axes[number][dim]
            if ids is None:
                left = tape.shapes[number][dim]
            else:  # the most in a line, since some lines are gone as a whole
                left = int((~gone[ids.movedim(dim, -1).reshape(-1, ids.shape[dim])]).sum(1).max())
            found.setdefault(attribute, set()).add(left)
    changed: dict[str, dict[str, Any]] = {}
    for (path, name, place), sizes in found.items():
        value = changed.get(path, {}).get(name, vars(model.get_submodule(path))[name])
        before = value if place is None else value[place]
        if len(sizes) > 1 or before in sizes or Attribute(path, name, place) in tape.fixed:
            continue
        (after,) = sizes
        new = after if place is None else (*value[:place], after, *value[place + 1 :])
        changed.setdefault(path, {})[name] = new
    return changed


def _why(units: Units, unit: int, above: frozenset[int] = frozenset()) -> str | None:
    """Why a unit stays; a whole stays because both its row (head, group) and its column (place in it) do."""
    reason = units.reasons.get(unit) or units.asides.get(unit)
    if reason is None:
        above |= {unit}  # a whole may be one with its own row
        parts = [part for part in units.children.get(unit, ()) if part not in above]
        reasons = [why for part in parts if (why := _why(units, part, above))]
        reason = "; ".join(dict.fromkeys(reasons)) or None
    return reason


def stayed(coupling: Coupling, gone: Tensor, dead: Tensor) -> tuple[Stayed, ...]:
    """Dead units that are kept, by reason."""
    found: dict[str, tuple[set[int], dict[str, None]]] = {}
    for number, name in coupling.tape.leaves.items():
        for dim, ids in enumerate(coupling.axes.get(number, [])):
            if ids is not None:
                for unit in ids[(dead & ~gone)[ids]].unique().tolist():
                    reason = _why(coupling.units, unit) or "it is tied to units that stay"
                    members, where = found.setdefault(reason, (set(), {}))
                    members.add(unit)
                    where[f"{name} dimension {dim}"] = None
    return tuple(Stayed(reason, len(members), tuple(where)) for reason, (members, where) in found.items())
