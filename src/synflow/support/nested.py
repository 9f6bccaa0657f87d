"""The leaves of nested tuples, lists and dicts; for the few arguments of an operation much faster than pytree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .private_torch import pytree


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts, in order."""
    if not isinstance(tree, (tuple, list, dict)):
        return [tree]
    found: list[Any] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Any]) -> None:
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, (tuple, list, dict)):
            _collect(item, found)
        else:
            found.append(item)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same nested tuples, lists and dicts with a function applied to their leaves."""
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([mapped(function, item) for item in tree])
    if kind is dict:
        return {key: mapped(function, item) for key, item in tree.items()}
    if isinstance(tree, (tuple, list, dict)):
        return pytree.tree_map(function, tree)
    return function(tree)
