"""Which units go: the largest set whose absence nobody outside it can notice.

All units are assumed to go; those whose absence would be noticed by one that stays are put back, until nobody notices.
A sum of products notices a missing index where both factors may be nonzero and the result stays. So units that only
feed each other go together, also around residual blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..record.aten_names import PARTS, VIEWS
from .coupling import Coupling
from .planes import product
from .units import Axes

__all__ = ["WHOLE_HEADS", "choose_units", "dead_units", "gone_plane", "less_and_less"]

WHOLE_HEADS = "heads have one size for all in this code, so they go as a whole or not at all"


def choose_units(coupling: Coupling, alive: Mapping[int, Tensor], frozen: Mapping[int, str] | None = None) -> Tensor:
    """For each unit, whether it goes; `frozen` are further units that must stay, with the reason."""
    units = coupling.units
    root = coupling.roots
    free = torch.zeros(len(root), dtype=torch.bool)  # units that no parameter has (a batch) never go
    for number in coupling.tape.leaves:
        for ids in coupling.axes.get(number, ()):
            if ids is not None:
                free[root[ids]] = True
    for joint in units.joints:
        for ids in joint:
            free[root[ids]] = True
    for unit in (*units.reasons, *(frozen or ())):
        free[units.find(unit)] = False
    gone = free.clone()
    units.asides = {units.find(unit): reason for unit, reason in (frozen or {}).items()}
    while True:
        before = int(gone.sum())
        _notice(coupling, alive, root, gone)
        _joints(coupling, root, gone)
        if int(gone.sum()) < before:
            continue
        _even_out(coupling, root, gone)  # only now, since units that go for the time being are no measure
        if int(gone.sum()) == before:
            _keep_one(coupling, root, gone)
        if int(gone.sum()) == before:
            break
    return gone[root]


def less_and_less(coupling: Coupling, model: nn.Module) -> Iterator[tuple[str, set[int]]]:
    """Units to be left alone, and why. At first none; a model whose code has sizes of its own may fail without more."""
    units = coupling.units
    yield "", set()
    if units.columns:
        yield WHOLE_HEADS, _members(units.columns)
    if units.cells:
        yield "what the code cuts into equal parts had to stay", _members(units.cells)
    kept = [*units.columns, *units.cells]
    for step in coupling.tape.steps:
        if step.name in VIEWS | PARTS and not isinstance(model.get_submodule(step.module), nn.Linear):
            kept += [ids for n in (*step.inputs, *step.outputs) for ids in coupling.of(n) if ids is not None]
    yield "what the code reshapes or cuts had to stay", _members(kept)
    yield "all units had to stay", set(range(len(coupling.roots)))


def _members(several: list[Tensor]) -> set[int]:
    return {unit for ids in several for unit in ids.unique().tolist()}


def dead_units(coupling: Coupling, alive: Mapping[int, Tensor], gone: Tensor) -> Tensor:
    """For each unit, whether nothing that stays reads it: it goes, or it would if it could."""
    root = coupling.roots
    dead = torch.zeros_like(gone)
    for ids, _ in coupling.sums:
        dead[root[ids]] = True
    _notice(coupling, alive, root, dead, gone)
    for whole, row, column in coupling.units.joints:
        dead[root[whole]] |= dead[root[row]] | dead[root[column]]
    return dead[root]


def gone_plane(axes: Axes, gone: Tensor) -> Tensor:
    """Which elements of a tensor go, as a plane."""
    plane = torch.zeros([1] * len(axes), dtype=torch.bool)
    for ids in axes:
        if ids is not None:
            plane = plane | gone[ids]
    return plane


def _notice(
    coupling: Coupling, alive: Mapping[int, Tensor], root: Tensor, going: Tensor, gone: Tensor | None = None
) -> None:
    """Put back what is read by something that stays."""
    for ids, p in reversed(coupling.sums):  # from the outputs on: most is settled in one pass
        ids = root[ids]
        if not bool(going[ids].any()):
            continue
        x, y = p.see(_plane(alive, p.x, p.shapes[0]), 0), p.see(_plane(alive, p.y, p.shapes[1]), 1)
        stays = p.see(~gone_plane(_roots(coupling.of(p.out), root), going if gone is None else gone), 2)
        read = product(stays, y.transpose(1, 2)) & x  # (batch, m, k)
        read = read.any(1)
        if read.shape[0] > ids.shape[0]:
            read = read.any(0, keepdim=True)
        going[ids[read.expand(ids.shape)]] = False


def _plane(alive: Mapping[int, Tensor], number: int, shape: tuple[int, ...]) -> Tensor:
    plane = alive.get(number)
    return torch.ones([1] * len(shape), dtype=torch.bool) if plane is None else plane


def _roots(axes: Axes, root: Tensor) -> Axes:
    return [None if ids is None else root[ids] for ids in axes]


def _joints(coupling: Coupling, root: Tensor, gone: Tensor) -> None:
    """A whole goes if and only if its row or its column goes."""
    for whole, row, column in coupling.units.joints:
        whole, row, column = root[whole], root[row], root[column]
        while True:
            before = int(gone[whole].sum() + gone[row].sum() + gone[column].sum())
            stays = ~gone[whole]
            gone[row[stays]] = False
            gone[column[stays]] = False
            gone[whole[~gone[row] & ~gone[column]]] = False
            if int(gone[whole].sum() + gone[row].sum() + gone[column].sum()) == before:
                break


def _keep_one(coupling: Coupling, root: Tensor, gone: Tensor) -> None:
    """No dimension of a parameter becomes empty: one at a time, from the outputs on, since what it reads stays too."""
    last_use = {number: place for place, step in enumerate(coupling.tape.steps) for number in step.inputs}
    for number in sorted(coupling.tape.leaves, key=lambda leaf: -last_use.get(leaf, -1)):
        for dim, ids in enumerate(coupling.axes.get(number, ())):
            if ids is None:
                continue
            lines = root[ids].movedim(dim, -1)
            lines = lines.reshape(-1, lines.shape[-1])
            if len(lines) == 1 and bool(gone[lines].all()):
                gone[lines[0, 0]] = False
                coupling.units.asides[int(lines[0, 0])] = "one unit at least must stay"
                return


def _even_out(coupling: Coupling, root: Tensor, gone: Tensor) -> None:
    """As many units go in every line that stays, and never all."""
    for matrix, rows in coupling.units.counts:
        lines = root[matrix]
        if rows is not None:
            lines = lines[~gone[root[rows]]]
        if len(lines) == 0:
            continue
        going = gone[lines]
        limit = min(int(going.sum(1).min()), lines.shape[1] - 1)
        extra = going & (going.cumsum(1) > limit)
        gone[lines[extra]] = False
        reason = "as many units must stay in every head, group or part"
        coupling.units.asides.update(dict.fromkeys(lines[extra].tolist(), reason))
