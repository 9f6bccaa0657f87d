"""What a forward pass leaves behind in its modules is taken away, so that every run begins in the same state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

# Attributes that every module has; the tables among them are looked at by name, hooks are not.
_OWN = frozenset(vars(nn.Module()))
_TABLES = ("_parameters", "_buffers", "_modules")


@contextmanager
def forgetting(model: nn.Module) -> Iterator[None]:
    """Put the attributes and buffers of all modules back afterwards: states, caches, counters, flags.

    Lists, dicts, sets and queues that are attributes get their entries back, and buffers and tensors their values. What
    other objects hold is not looked at, nor are the values of parameters.
    """
    tables = [table for module in model.modules() for table in _tables(module)]
    before = [(table, _entries(table)) for table in tables]
    weights = {id(weight) for module in model.modules() for weight in module._parameters.values()}
    tensors = {
        id(tensor): (tensor, _state(tensor), tensor.detach().clone())
        for tensor in _tensors(tables)
        if id(tensor) not in weights
    }
    try:
        yield
    finally:
        for table, entries in before:
            if not _same(_entries(table), entries):
                _refill(table, entries)
        changed = {key: copy for key, (tensor, state, copy) in tensors.items() if _state(tensor) != state}
        if changed:
            for table in tables:
                for key, value in list(table.items()) if isinstance(table, dict) else ():
                    table[key] = changed.get(id(value), value)


def _tables(module: nn.Module) -> Iterator[Any]:
    """The containers of a module: its attributes, its tables by name, and its own lists, dicts, sets and queues."""
    attributes = vars(module)
    yield attributes
    yield from (attributes[name] for name in _TABLES)
    yield from (v for k, v in attributes.items() if k not in _OWN and isinstance(v, (list, dict, set, deque)))


def _entries(table: Any) -> list[Any]:
    return list(table.items()) if isinstance(table, dict) else list(table)


def _same(now: list[Any], before: list[Any]) -> bool:
    """Whether two lists of entries, or of keys with entries, hold the same objects."""
    if len(now) != len(before):
        return False
    return all(a is b or (type(a) is type(b) is tuple and _same_pair(a, b)) for a, b in zip(now, before, strict=True))


def _same_pair(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _refill(table: Any, entries: list[Any]) -> None:
    table.clear()
    table.update(entries) if isinstance(table, (dict, set)) else table.extend(entries)


def _tensors(tables: list[Any]) -> Iterator[Tensor]:
    """The tensors in them."""
    for table in tables:
        yield from (v for v in (table.values() if isinstance(table, dict) else table) if isinstance(v, Tensor))


def _state(tensor: Tensor) -> tuple[type, int]:
    """What differs after a tensor has been written to: flows written into one change its class."""
    return type(tensor), -1 if tensor.is_inference() else tensor._version
