"""What can go wrong, said so that it can be put right."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any


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


def is_strict() -> bool:
    """Whether an unexpected fallback is an error: set SYNFLOW_STRICT=1, as the test suite does."""
    return os.environ.get("SYNFLOW_STRICT", "") not in ("", "0")


def warn(message: str) -> None:
    """Warn at the line outside of this package that led here, however many calls and decorators lie between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("synflow", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def need(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it.

    >>> need("math", extra="plots").sqrt(4.0)
    2.0
    >>> need("no_such_module", extra="plots")
    Traceback (most recent call last):
    synflow.errors.MissingExtraError: this needs 'no_such_module'; install it with: pip install 'synflow[plots]'
    """
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        if cause.name is not None and cause.name.split(".")[0] != package:
            raise
        raise MissingExtraError(f"this needs {package!r}; install it with: pip install 'synflow[{extra}]'") from cause


def choose(kind: str, name: object, table: dict[str, Any], form: str) -> Any:
    """Look a name up in a table; a function of this form stands for itself, an unknown name lists the choices.

    >>> choose("score", "synflo", {"synflow": 1, "snip": 2}, "(network, ...) -> ...")
    Traceback (most recent call last):
    synflow.errors.SynflowError: no score 'synflo'; choose from snip, synflow, or pass a function (network, ...) -> ...
    """
    others = f"choose from {', '.join(sorted(table))}, or pass a function {form}"
    if callable(name):
        check_function(kind, name, form, f"; {others}")
        return name
    if isinstance(name, str) and name in table:
        return table[name]
    raise SynflowError(f"no {kind} {brief(name)}; {others}")


def check_function(what: str, value: object, form: str, way_out: str = "") -> None:
    """Refuse anything but a function, or an object that is called like one, that takes the arguments of the form.

    >>> check_function("score", lambda network: {}, "(network, masks) -> scores")
    Traceback (most recent call last):
    synflow.errors.SynflowError: score must be a function (network, masks) -> scores, got <lambda> with other arguments
    """
    if not callable(value):
        raise SynflowError(f"{what} must be a function {form}, got {brief(value)}{way_out}")
    name = getattr(value, "__name__", type(value).__name__)
    if isinstance(value, type):
        raise SynflowError(f"{what} must be a function {form}, got the class {name} itself{way_out}")
    arguments = form.split(")")[0].split(",")
    try:
        # A module is called by its forward; the signature of its __call__ tells nothing.
        inspect.signature(getattr(value, "forward", value)).bind(*arguments)
    except TypeError:
        raise SynflowError(f"{what} must be a function {form}, got {name} with other arguments{way_out}") from None
    except ValueError:
        return  # some built-in functions do not tell their arguments


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False.

    >>> check_flag("progress", "yes")
    Traceback (most recent call last):
    synflow.errors.SynflowError: progress must be True or False, got 'yes'
    """
    if not isinstance(value, bool):
        raise SynflowError(f"{name} must be True or False, got {brief(value)}")


def brief(value: object) -> str:
    """A value in one short line, for an error.

    >>> brief([1, 2]), brief("x" * 100)
    ('[1, 2]', 'a str')
    """
    text = repr(value)
    name = type(value).__name__
    return text if len(text) <= 60 and "\n" not in text else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def named(kind: str, name: object, table: Mapping[str, Any] | Iterable[str], others: str = "") -> None:
    """Refuse a name that is not in a table, where nothing but names can be given; `others` says what else can.

    >>> named("score", "synflo", ["synflow", "snip"])
    Traceback (most recent call last):
    synflow.errors.SynflowError: no score 'synflo' (did you mean synflow?); choose from snip, synflow
    """
    every = sorted(table)
    if not isinstance(name, str) or name not in every:
        guess = similar(name, every) if isinstance(name, str) else ""
        raise SynflowError(f"no {kind} {brief(name)}{guess}; choose from {', '.join(every)}{others}")


def similar(name: str, names: Iterable[str]) -> str:
    """A question with the names that are spelt most like this one, if any are.

    >>> similar("vgg61", ["vgg16", "resnet20"]), similar("x", ["vgg16"])
    (' (did you mean vgg16?)', '')
    """
    found = difflib.get_close_matches(name, list(names), n=3)
    return f" (did you mean {' or '.join(found)}?)" if found else ""
