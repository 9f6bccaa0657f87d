"""What can go wrong, said so that it can be put right."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

__all__ = ["MissingExtraError", "PruningInterrupt", "SynflowError", "choose", "named", "need", "similar"]


class SynflowError(ValueError):
    """Something the user can put right; the message says what, where, got/expected and the way out."""


class MissingExtraError(SynflowError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class PruningInterrupt(KeyboardInterrupt):
    """Ctrl-C while pruning: `reached` says how far it came, the message also that nothing was changed.

    >>> print(PruningInterrupt("2 of 5 steps, at density 0.5"))
    pruning was interrupted after 2 of 5 steps, at density 0.5; the model is unchanged
    """

    def __init__(self, reached: str) -> None:
        super().__init__(f"pruning was interrupted after {reached}; the model is unchanged")
        self.reached = reached


def need(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it.

    >>> need("math", extra="plots").sqrt(4.0)
    2.0
    >>> need("no_such_module", extra="plots")
    Traceback (most recent call last):
    synflow.errors.MissingExtraError: this needs 'no_such_module'; install it with: pip install 'synflow[plots]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        if cause.name is not None and cause.name.split(".")[0] != module.split(".")[0]:
            raise
        package = module.split(".")[0]
        raise MissingExtraError(f"this needs {package!r}; install it with: pip install 'synflow[{extra}]'") from cause


def choose(kind: str, name: object, table: dict[str, Any]) -> Any:
    """Look a name up in a table; a callable stands for itself, an unknown name lists the choices.

    >>> choose("score", "synflo", {"synflow": 1, "snip": 2})
    Traceback (most recent call last):
    synflow.errors.SynflowError: no score 'synflo'; choose from snip, synflow, or pass a callable
    """
    if callable(name):
        return name
    if isinstance(name, str) and name in table:
        return table[name]
    raise SynflowError(f"no {kind} {name!r}; choose from {', '.join(sorted(table))}, or pass a callable")


def named(kind: str, name: str, table: Mapping[str, Any] | Iterable[str], others: str = "") -> None:
    """Refuse a name that is not in a table, where nothing but names can be given; `others` says what else can.

    >>> named("score", "synflo", ["synflow", "snip"])
    Traceback (most recent call last):
    synflow.errors.SynflowError: no score 'synflo' (did you mean synflow?); choose from snip, synflow
    """
    every = sorted(table)
    if name not in every:
        raise SynflowError(f"no {kind} {name!r}{similar(name, every)}; choose from {', '.join(every)}{others}")


def similar(name: str, names: Iterable[str]) -> str:
    """A question with the names that are spelt most like this one, if any are.

    >>> similar("vgg61", ["vgg16", "resnet20"]), similar("x", ["vgg16"])
    (' (did you mean vgg16?)', '')
    """
    found = difflib.get_close_matches(name, list(names), n=3)
    return f" (did you mean {' or '.join(found)}?)" if found else ""
