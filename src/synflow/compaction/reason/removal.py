"""Which units go: the largest set whose absence nobody outside it can notice.

All units are assumed to go; those whose absence would be noticed by one that stays are put back, until nobody notices.
A sum of products notices a missing index where both factors may be nonzero and the result stays. So units that only
feed each other go together, also around residual blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .coupling import Coupling
from .planes import product
from .units import Axes

__all__ = ["choose_units", "dead_units", "gone_plane"]


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
    for number, dim in coupling.totals:
        axis = coupling.of(number)[dim]
        assert axis is not None
        axis = root[axis]
        shape = coupling.tape.shapes[number]
        seen = _plane(alive, number, shape) & ~gone_plane(_roots(coupling.of(number), root, dim), going)
        seen, axis = torch.broadcast_tensors(seen, axis)
        going[axis[seen]] = False


def _plane(alive: Mapping[int, Tensor], number: int, shape: tuple[int, ...]) -> Tensor:
    plane = alive.get(number)
    return torch.ones([1] * len(shape), dtype=torch.bool) if plane is None else plane


def _roots(axes: Axes, root: Tensor, skip: int | None = None) -> Axes:
    return [None if ids is None or dim == skip else root[ids] for dim, ids in enumerate(axes)]


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
