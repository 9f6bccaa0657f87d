"""Standard JSON, and a reader that refuses damaged files with a one-sentence error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SynflowError


class _Absent:
    def __repr__(self) -> str:
        return "missing"


ABSENT = _Absent()
NUMBER = (int, float)
MAYBE_NUMBER = (int, float, type(None))


@dataclass(frozen=True)
class Between:
    """The form of a finite number within limits, an integer if the limits are; if optional, null is valid too."""

    least: float
    most: float
    optional: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if isinstance(self.least, int) else "a number"
        return f"{kind} from {self.least:g} to {self.most:g}{' or null' if self.optional else ''}"

    def holds(self, value: Any) -> bool:
        if value is None or value is ABSENT:
            return self.optional
        kinds = int if isinstance(self.least, int) else NUMBER
        return isinstance(value, kinds) and not isinstance(value, bool) and self.least <= value <= self.most


def finite(value: Any) -> Any:
    """The value with None for numbers that JSON cannot represent (infinities, NaN), and lists for tuples.

    >>> finite({"flow": float("-inf"), "shape": (2, 3)})
    {'flow': None, 'shape': [2, 3]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def json_text(value: Any) -> str:
    """A JSON document, one entry per line."""
    return json.dumps(finite(value), indent=1) + "\n"


def parse_json(text: str | bytes, name: str) -> dict[str, Any]:
    """A JSON object from a text; `name` is the source of the text in errors.

    >>> parse_json("[" * 100_000, "run.json")
    Traceback (most recent call last):
    synflow.errors.SynflowError: run.json is damaged: its JSON is nested too deeply
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise SynflowError(f"{name} is damaged: its JSON is nested too deeply") from None
    except ValueError as cause:
        raise SynflowError(f"{name} is damaged: it is no JSON ({cause})") from cause
    if not isinstance(value, dict):
        raise SynflowError(f"{name} is damaged: it holds no JSON object")
    return value


def read_json(path: Path, version: int | None = None) -> dict[str, Any]:
    """A JSON object from a file; of a file that states its format, this version of it."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise SynflowError(f"{path}: there is no such file") from None
    except OSError as cause:
        raise SynflowError(f"{path} cannot be read: {cause.strerror or cause}") from cause
    found = parse_json(text, str(path))
    if version is not None and found.get("format") != version:
        got = found.get("format")
        raise SynflowError(f"{path} has format {got!r}, this version of synflow reads format {version}")
    return found


def check_form(value: Any, form: Any, name: str) -> None:
    """Refuse a value without the given form: a type or types, a list of one form, a dict of forms by key, or limits.

    `{str: form}` is an object whose values all have one form. Extra keys are allowed; a key whose form is a list or
    dict inside a tuple may be None.

    >>> check_form({"kept": 3, "layers": ["a", 2]}, {"kept": int, "layers": [str]}, "facts.json")
    Traceback (most recent call last):
    synflow.errors.SynflowError: facts.json is damaged: layers[1] is 2, expected str
    """
    wrong = _misfit(value, form, "")
    if wrong is not None:
        where, found, wanted = wrong
        text = repr(found) if len(repr(found)) <= 60 else repr(found)[:57] + "..."
        raise SynflowError(f"{name} is damaged: {where or 'it'} is {text}, expected {wanted}")


def _misfit(value: Any, form: Any, where: str) -> tuple[str, Any, str] | None:
    """The first place where a value violates its form: the place, the found value, the expected form."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return where, value, "an object"
        kinds = dict.fromkeys(value, form[str]) if str in form else form
        inner = ((value.get(key, ABSENT), kind, f"{where}.{key}" if where else key) for key, kind in kinds.items())
    elif isinstance(form, list):
        if not isinstance(value, list):
            return where, value, "a list"
        inner = ((item, form[0], f"{where}[{index}]") for index, item in enumerate(value))
    elif isinstance(form, Between):
        return None if form.holds(value) else (where, value, str(form))
    elif isinstance(form, tuple) and isinstance(form[0], dict | list):
        return None if value is None else _misfit(value, form[0], where)
    else:
        types = form if isinstance(form, tuple) else (form,)
        fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
        return None if fits else (where, value, wanted)
    return next((wrong for item in inner if (wrong := _misfit(*item)) is not None), None)
