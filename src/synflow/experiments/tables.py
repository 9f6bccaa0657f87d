"""Results that were exported with `synflow results --out runs.csv`, read back, so that figures need no training."""

from __future__ import annotations

import csv
import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError

from ..support.json_files import check_form
from .configs import Config, from_dict, identity, starting_point, to_dict
from .outcomes import ABOUT_FORM, check_outcome
from .recipes import Recipe

__all__ = ["DETAILS", "command_of", "read_tables"]

# The column for lists and tables of an outcome that figures need, as JSON.
DETAILS = "details"
# The longest cell, in characters: details of thousands of units pass the 128 Ki that Python allows by default.
LONGEST = 2**26
ABOUT = ("threads", "host", "torch", "synflow", "seconds", "commit")
SETTINGS = [f.name for f in dataclasses.fields(Config) if f.name != "recipe"]
OF_RECIPE = [f.name for f in dataclasses.fields(Recipe)]


def read_tables(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in all CSV files of a folder, by the names of their runs; a row that is no result is an error."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.csv")):
        for number, row in _rows(path):
            where = f"{path}, line {number}"
            try:
                result = _result(row)
                config = from_dict(result["config"])
                check_form(result, {"about": ABOUT_FORM}, where)
                check_outcome(config, result["outcome"], where)
                found[identity(config)] = result
            except SynflowError as cause:
                said = str(cause) if where in str(cause) else f"{where} is no result: {cause}"
                raise SynflowError(f"{said}; write the table with `synflow results --out`") from cause
    return found


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with the lines they end on."""
    usual = csv.field_size_limit(LONGEST)
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise SynflowError(f"{path} cannot be read as a table: {cause}") from cause
    finally:
        csv.field_size_limit(usual)


def _result(row: Mapping[str, str | None]) -> dict[str, Any]:
    values = {name: _value(text) for name, text in row.items() if name is not None}
    settings = {name: values[name] for name in SETTINGS if values.get(name) is not None}
    recipe = {name: values[name] for name in OF_RECIPE if values.get(name) is not None}
    config = to_dict(from_dict({**settings, "recipe": recipe}))
    known = {*SETTINGS, *OF_RECIPE, *ABOUT, "run", DETAILS}
    # A name that settings and outcome share is written as out_NAME.
    outcome = {name.removeprefix("out_"): value for name, value in values.items() if name not in known}
    details = values.get(DETAILS) or {}
    if not isinstance(details, dict):
        raise SynflowError(f"{DETAILS} must be a JSON object, got {str(details)[:40]!r}")
    outcome |= details
    return {"config": config, "outcome": outcome, "about": {name: values.get(name) for name in ABOUT}}


def _value(text: str | None) -> Any:
    """A cell of a CSV file as Python wrote it: numbers, True, None as nothing, lists in brackets; else words."""
    if not text:
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def command_of(config: Config) -> str:
    """The command that does one run again: every setting that is not what a sweep starts from.

    >>> command_of(Config(compression=10.0))
    'synflow sweep --set compression=10.0 --set epochs=1 --set batch_size=128 --set lr=0.1 --set lr_schedule=step'
    """
    plain, default = to_dict(config), to_dict(starting_point(to_dict(config)))
    settings = {**plain, **plain["recipe"]}
    usual = {**default, **default["recipe"]}
    words = [
        f"{name}={json.dumps(value, separators=(',', ':')) if isinstance(value, list) else value}"
        for name, value in settings.items()
        if name != "recipe" and value != usual[name]
    ]
    return shlex.join(["synflow", "sweep", *(word for pair in words for word in ("--set", pair))])
