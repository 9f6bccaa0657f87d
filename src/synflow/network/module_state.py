"""Restores module state that a forward pass changed, so that every run begins in the same state."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

# Attributes that every module has: `_tables` names its tables of tensors and modules; hooks are ignored.
_OWN = frozenset(vars(nn.Module()))


@contextmanager
def forgetting(model: nn.Module) -> Iterator[None]:
    """Restore the attributes and buffers of all modules afterwards: states, caches, counters, flags.

    Restores the entries of lists, dicts, sets and queues that are attributes, and the values of buffers and tensors.
    The contents of other objects and the values of parameters are not restored.
    """
    modules = list(model.modules())
    tables = [table for module in modules for table in _tables(module)]
    before = [(table, table.copy(), _ids(table)) for table in tables]
    weights = {id(weight) for module in modules for weight in module._parameters.values()}
    held = {id(value): value for table in tables for value in _values(table) if isinstance(value, Tensor)}
    tensors = {key: (held[key], _state(held[key]), held[key].detach().clone()) for key in held.keys() - weights}
    try:
        yield
    finally:
        for table, entries, ids in before:
            if _ids(table) != ids:
                table.clear()
                table.extend(entries) if isinstance(table, (list, deque)) else table.update(entries)
        changed = {key: copy for key, (tensor, state, copy) in tensors.items() if _state(tensor) != state}
        if changed:
            for table in tables:
                for key, value in list(table.items()) if isinstance(table, dict) else ():
                    table[key] = changed.get(id(value), value)


def _tables(module: nn.Module) -> Iterator[Any]:
    """The containers of a module: its attributes, its tables by name, and its own lists, dicts, sets and queues."""
    attributes = vars(module)
    yield from (attributes, module._parameters, module._buffers, module._modules)
    own = (attributes[name] for name in attributes.keys() - _OWN)
    yield from (value for value in own if isinstance(value, (list, dict, set, deque)))


def _values(table: Any) -> Collection[Any]:
    return table.values() if isinstance(table, dict) else table


def _ids(table: Any) -> tuple[Any, ...]:
    """The ids of a container's objects, in order, with their keys."""
    return (*(table if isinstance(table, dict) else ()), *map(id, _values(table)))


def _state(tensor: Tensor) -> tuple[type, int]:
    """A value that changes when a tensor is written to: its version, and its class, which a written flow changes."""
    return type(tensor), -1 if tensor.is_inference() else tensor._version
