"""JSON that other programs read too, and reading that refuses what is damaged with one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SynflowError

__all__ = ["finite", "json_text", "parse_json", "read_json"]


def finite(value: Any) -> Any:
    """The value with None in place of numbers that JSON cannot hold (infinities, NaN), and lists in place of tuples.

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
    """A JSON object from a text; `name` says in errors where the text is from.

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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise SynflowError(f"{path}: there is no such file") from None
    except OSError as cause:
        raise SynflowError(f"{path} cannot be read: {cause.strerror or cause}") from cause
    return parse_json(text, str(path))
