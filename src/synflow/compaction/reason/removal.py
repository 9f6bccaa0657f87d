"""Which units go: the largest set that nothing outside of it reads.

All units are assumed to go; those that something that stays reads are put back, until there are none. A sum of
products reads an index where both factors may be nonzero and the result stays. So units that only feed each other go
together, also around residual blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..record.aten_names import PARTS, VIEWS
from .coupling import Coupling
from .liveness import Planes
from .planes import product

WHOLE_HEADS = "heads have one size for all in this code, so they go as a whole or not at all"


def choose_units(coupling: Coupling, alive: Planes, frozen: Iterable[int], why: str) -> Tensor:
    """For each unit, whether it goes; `frozen` are further units that must stay, and why."""
    units = coupling.units
    gone = torch.zeros(len(units.parent), dtype=torch.bool)  # units that no parameter has (a batch) never go
    own = [ids for number in coupling.tape.leaves for ids in coupling.axes.get(number, ())]
    for ids in (*own, *itertools.chain(*units.joints)):
        if ids is not None:
            gone[ids] = True
    units.asides = dict.fromkeys(frozen, why)
    gone[torch.tensor([*units.reasons, *units.asides], dtype=torch.long)] = False
    while True:
        before = int(gone.sum())
        _notice(coupling, alive, gone, gone)
        _joints(coupling, gone)
        if int(gone.sum()) < before:
            continue
        _even_out(coupling, gone)  # only when nothing is put back any more: before, too many go
        if int(gone.sum()) == before:
            _keep_one(coupling, gone)
        if int(gone.sum()) == before:
            return gone


def attempts(coupling: Coupling, model: nn.Module) -> Iterator[tuple[str, set[int]]]:
    """The units that must stay in each attempt, and why: more from attempt to attempt, as code may fix sizes."""
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
    yield "all units had to stay", set(range(len(units.parent)))


def _members(several: list[Tensor]) -> set[int]:
    return {unit for ids in several for unit in ids.unique().tolist()}


def dead_units(coupling: Coupling, alive: Planes, gone: Tensor) -> Tensor:
    """For each unit, whether nothing that stays reads it; it may be tied to units that stay."""
    dead = torch.zeros_like(gone)
    for ids, _ in coupling.sums:
        dead[ids] = True
    _notice(coupling, alive, dead, gone)
    for whole, row, column in coupling.units.joints:
        dead[whole] |= dead[row] | dead[column]
    return dead


def _notice(coupling: Coupling, alive: Planes, going: Tensor, gone: Tensor) -> None:
    """Put back each unit that a unit or output that stays reads."""
    for ids, p in reversed(coupling.sums):  # from the outputs on: most is settled in one pass
        if not bool(going[ids].any()):
            continue
        x, y = p.see(alive[p.x], 0), p.see(alive[p.y], 1)
        lost = torch.zeros([1] * len(p.shapes[2]), dtype=torch.bool)
        for axis in coupling.of(p.out):
            lost = lost if axis is None else lost | gone[axis]
        read = (product(p.see(~lost, 2), y.transpose(1, 2)) & x).any(1)  # of (batch, m, k)
        if read.shape[0] > ids.shape[0]:
            read = read.any(0, keepdim=True)
        going[ids[read.expand(ids.shape)]] = False


def _joints(coupling: Coupling, gone: Tensor) -> None:
    """A whole goes if and only if its row or its column goes."""
    for whole, row, column in coupling.units.joints:
        stays = ~gone[whole]
        gone[row[stays]] = False
        gone[column[stays]] = False
        gone[whole[~gone[row] & ~gone[column]]] = False


def _keep_one(coupling: Coupling, gone: Tensor) -> None:
    """No dimension of a parameter becomes empty: one at a time, from the outputs on, since what it reads stays too."""
    last_use = {number: place for place, step in enumerate(coupling.tape.steps) for number in step.inputs}
    for number in sorted(coupling.tape.leaves, key=lambda leaf: -last_use.get(leaf, -1)):
        for dim, ids in enumerate(coupling.axes.get(number, ())):
            if ids is not None and ids.numel() == ids.shape[dim] and bool(gone[ids].all()):
                first = ids.flatten()[0]
                gone[first] = False
                coupling.units.asides[int(first)] = "one unit at least must stay"
                return


def _even_out(coupling: Coupling, gone: Tensor) -> None:
    """As many units go in every line that stays, and never all."""
    for lines, rows in coupling.units.counts:
        if rows is not None:
            lines = lines[~gone[rows]]
        if len(lines) == 0:
            continue
        going = gone[lines]
        limit = min(int(going.sum(1).min()), lines.shape[1] - 1)
        extra = lines[going & (going.cumsum(1) > limit)]
        gone[extra] = False
        reason = "as many units must stay in every head, group or part"
        coupling.units.asides.update(dict.fromkeys(extra.tolist(), reason))
