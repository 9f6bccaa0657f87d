"""All results as one table: read, filtered, written as CSV, Markdown, LaTeX or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError, need

from .configs import from_dict
from .outcomes import form_of
from .runs import read_result
from .sealed_json import write_drawing
from .summaries import Spread, to_latex
from .tables import DETAILS, command_of, read_tables

__all__ = ["collect", "columns", "select", "to_csv", "to_markdown", "write_table"]

Row = dict[str, Any]
_CONDITION = re.compile(r"^\s*([\w.]+)\s*(<=|>=|!=|==|=|<|>|~)\s*(.*?)\s*$")


def collect(root: str | Path) -> tuple[list[Row], list[str]]:
    """A row for each finished run under a folder, settings and outcome side by side, and what could not be read.

    Runs that were exported into a table there (`synflow results --out runs.csv`) count as well.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise SynflowError(f"{folder} is no folder of runs; name the one given as --runs when they were made")
    rows, problems = [], []
    for path in sorted(folder.glob("*/result.json")):
        try:
            result = read_result(path.parent)
        except SynflowError as cause:
            problems.append(f"{cause}; the run is done again when it is next asked for")
            continue
        if result is not None:
            rows.append(_row(path.parent.name, result))
    try:
        exported = read_tables(folder)
    except SynflowError as cause:
        return rows, [*problems, str(cause)]
    known = {row["run"] for row in rows}
    return rows + [_row(name, result) for name, result in exported.items() if name not in known], problems


def _row(name: str, result: Mapping[str, Any]) -> Row:
    config = dict(result["config"])
    recipe = config.pop("recipe")
    row: Row = {"run": name, **config, **recipe}
    made = from_dict(result["config"])
    outcome = {key: value for key, value in result["outcome"].items() if _is_simple(value)}
    # Lists and tables that no figure needs stay in the run's own file.
    details = {key: value for key, value in result["outcome"].items() if key in form_of(made, result["outcome"])}
    details = {key: value for key, value in details.items() if not _is_simple(value)}
    simple = outcome | {key: value for key, value in result["about"].items() if _is_simple(value)}
    row |= {key if key not in row else f"out_{key}": value for key, value in simple.items()}
    row |= {DETAILS: json.dumps(details, separators=(",", ":"))} if details else {}
    return row | {"command": command_of(made)}


def _is_simple(value: object) -> bool:
    """Whether a value fits into a cell as it is."""
    return isinstance(value, str | int | float | bool | None)


def select(rows: Iterable[Row], conditions: Iterable[str]) -> list[Row]:
    """The rows that meet all conditions, such as `method=synflow`, `compression>=100`, `model~vgg`.

    >>> select([{"method": "snip", "top1": 10.0}, {"method": "synflow", "top1": 50.0}], ["top1>20"])
    [{'method': 'synflow', 'top1': 50.0}]
    """
    rows = list(rows)
    for condition in conditions:
        match = _CONDITION.match(condition)
        if match is None:
            raise SynflowError(f"{condition!r} is no condition; write name=value, name>=value or name~part")
        name, sign, wanted = match.groups()
        if rows and not any(name in row for row in rows):
            raise SynflowError(f"no column {name!r}; choose from {', '.join(columns(rows))}")
        if sign[0] in "<>" and _number(wanted) is None:
            raise SynflowError(f"{condition!r}: {sign} compares numbers, got {wanted!r}")
        rows = [row for row in rows if _holds(row.get(name), sign, wanted)]
    return rows


def _number(value: Any) -> float | None:
    """A number, or what stands for one: tables say yes and no."""
    try:
        return float({"yes": 1, "true": 1, "no": 0, "false": 0}.get(str(value).lower(), value))
    except (TypeError, ValueError):
        return None


def _holds(value: Any, sign: str, wanted: str) -> bool:
    if sign == "~":
        return wanted in str(value)
    left, right = _number(value), _number(wanted)
    if left is None or right is None:
        equal = str(value) == wanted
        return equal if sign in ("=", "==") else sign == "!=" and not equal
    return {
        "=": left == right, "==": left == right, "!=": left != right,
        "<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right,
    }[sign]  # fmt: skip


def columns(rows: Sequence[Row]) -> list[str]:
    """The names of all columns, in the order they were met."""
    return list(dict.fromkeys(name for row in rows for name in row))


def to_csv(rows: Sequence[Row], names: Sequence[str] | None = None) -> str:
    """The table as CSV text; a mean has its deviation in a column beside it."""
    buffer = io.StringIO()
    names = names or columns(rows)
    spread = {name for name in names if any(isinstance(row.get(name), Spread) for row in rows)}
    heads = [head for name in names for head in ((name, f"{name}_deviation") if name in spread else (name,))]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        cells: list[Any] = []
        for name in names:
            value = row.get(name)
            cells += [*value] if isinstance(value, Spread) else [value, None] if name in spread else [value]
        writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in cells])
    return buffer.getvalue()


def to_markdown(rows: Sequence[Row], names: Sequence[str] | None = None) -> str:
    """The table in Markdown."""
    names = names or columns(rows)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_shown(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else f"{value:.4g}"
    return str(value)


def write_table(rows: Sequence[Row], path: Path, names: Sequence[str] | None = None) -> None:
    """Write a .csv, .md, .tex or .parquet file."""
    names = list(names or columns(rows))
    text = {".csv": to_csv, ".md": to_markdown, ".tex": to_latex}.get(path.suffix)
    if text is not None:
        write_drawing(path, text(rows, names).encode())
    elif path.suffix == ".parquet":
        arrow, parquet = need("pyarrow", extra="parquet"), need("pyarrow.parquet", extra="parquet")
        uniform = [{name: _uniform(row.get(name)) for name in names} for row in rows]
        buffer = arrow.BufferOutputStream()
        parquet.write_table(arrow.Table.from_pylist(uniform), buffer)
        write_drawing(path, buffer.getvalue().to_pybytes())
    else:
        raise SynflowError(f"{path}: a table is a .csv, .md, .tex or .parquet file")


def _uniform(value: Any) -> Any:
    return str(value) if isinstance(value, list | tuple) else value
