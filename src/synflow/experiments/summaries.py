"""Results for people: what varies as columns, mean and spread over seeds, as text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .tables import ABOUT, OF_RECIPE, SETTINGS

__all__ = ["Spread", "in_order", "measured", "over_seeds", "shared_settings", "to_latex", "varying"]

Row = dict[str, Any]
# What is shown of a run that trains, if it is there; of others every number that came out.
USUAL = ("top1", "connected", "empty_layers", "dead_layers", "train_seconds")
# A table on the screen has room for about this many results beside the settings.
MOST_MEASURES = 6


class Spread(NamedTuple):
    """Mean and standard deviation over seeds (NaN for a single one).

    >>> str(Spread(97.25, 0.4)), str(Spread(9.44, 0.4)), str(Spread(97.25, float("nan")))
    ('97.25 ± 0.40', '9.44 ± 0.40', '97.25')
    """

    mean: float
    deviation: float

    def __str__(self) -> str:
        if math.isnan(self.deviation):
            return shown(self.mean)
        digits = max(2, min(6, 3 - math.ceil(math.log10(abs(self.mean) + 1e-9))))
        return f"{self.mean:,.{digits}f} ± {self.deviation:,.{digits}f}"


def shown(value: object) -> str:
    """A value as a table shows it.

    >>> [shown(value) for value in (None, True, 97.2222, 12345.0, 1e-7, "snip", [3, 5])]
    ['', 'yes', '97.22', '12,345', '1e-07', 'snip', '3, 5']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Spread):
        return str(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        if not math.isfinite(value) or (value and not 1e-4 < abs(value) < 1e9):
            return f"{value:.3g}"
        return f"{value:,.0f}" if value == round(value) or abs(value) >= 1e4 else f"{value:,.4g}"
    return "" if value is None else str(value)


def varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings, seeds aside, that differ between rows."""
    names = [name for name in (*SETTINGS, *OF_RECIPE) if name != "seed"]
    return [name for name in names if len({repr(row.get(name)) for row in rows}) > 1]


def shared_settings(rows: Sequence[Mapping[str, Any]], usual: Mapping[str, Any]) -> str:
    """What is the same in all rows: model and data, and settings that are not the usual ones."""
    names = [name for name in (*SETTINGS, *OF_RECIPE) if len({repr(row.get(name)) for row in rows}) == 1]
    told = [
        name for name in names if name in ("model", "dataset", "epochs") or rows[0].get(name) != usual.get(name, ...)
    ]
    return ", ".join(f"{name} {shown(rows[0].get(name))}" for name in told if rows[0].get(name) is not None)


def measured(rows: Sequence[Row]) -> list[str]:
    """The results that a table shows."""
    found = [name for name in USUAL if any(row.get(name) is not None for row in rows)]
    if "top1" in found:
        return [n for n in found if not n.endswith("_layers") or any(row.get(n) for row in rows)]
    settings = {*SETTINGS, *OF_RECIPE, *ABOUT, "run", "command"}
    others = {n: None for row in rows for n, v in row.items() if n not in settings and isinstance(v, int | float)}
    return list(others)[:MOST_MEASURES]


def over_seeds(rows: Sequence[Row], measures: Sequence[str]) -> list[Row]:
    """One row per setting: how many runs it has, and mean and spread of what was measured.

    >>> rows = [{"method": "snip", "seed": seed, "top1": 90.0 + seed} for seed in (0, 1)]
    >>> str(over_seeds(rows, ["top1"])[0]["top1"])
    '90.50 ± 0.71'
    """
    names = varying(rows)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(repr(row.get(name)) for name in names), []).append(row)
    found = []
    for group in groups.values():
        settings = {name: group[0].get(name) for name in names}
        found.append({**settings, "runs": len(group), **{name: _joined(group, name) for name in measures}})
    return in_order(found, names)


def _joined(group: Sequence[Row], name: str) -> Any:
    values = [row[name] for row in group if row.get(name) is not None]
    if all(isinstance(value, bool) for value in values):
        yes = sum(values)
        return None if not values else True if yes == len(values) else f"{yes} of {len(values)}" if yes else False
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    if not numbers:
        return None
    return Spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else math.nan)


def in_order(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Rows sorted by columns: numbers by size, then words, then what is missing; a minus before a name turns it round.

    >>> [row["c"] for row in in_order([{"c": 100.0}, {"c": None}, {"c": 5.0}], ["-c"])]
    [100.0, 5.0, None]
    """

    def key(row: Row, name: str) -> tuple[bool, float, str]:
        value = row.get(name)
        number = value.mean if isinstance(value, Spread) else value
        return isinstance(value, str), float(number) if isinstance(number, int | float) else 0.0, str(value)

    made = list(rows)
    for name in reversed(names):
        plain = name.removeprefix("-")
        made.sort(key=lambda row: key(row, plain), reverse=name != plain)
        made.sort(key=lambda row: row.get(plain) is None)
    return made


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
}  # fmt: skip


def to_latex(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The table as a LaTeX tabular that needs no package; numbers stand to the right."""
    right = ["r" if _is_number(rows, name) else "l" for name in names]
    cells = [names, *([shown(row.get(name)) for name in names] for row in rows)]
    head, *body = (" & ".join(map(_escaped, line)) + r" \\" for line in cells)
    parts = [rf"\begin{{tabular}}{{{''.join(right)}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    return "\n".join(parts) + "\n"


def _is_number(rows: Sequence[Row], name: str) -> bool:
    values = [row.get(name) for row in rows if row.get(name) is not None]
    return bool(values) and all(isinstance(v, int | float | Spread) and not isinstance(v, bool) for v in values)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
