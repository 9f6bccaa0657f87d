"""The HTML elements of every report: document, sections, sortable tables, lists of settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from ..support.numbers import seconds_text

Cell = tuple[str, float | str]  # the displayed text, and the sort key

# A report loads nothing from other places, whatever text it contains.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, sub: str, sections: Iterable[str]) -> str:
    """A whole HTML document around sections."""
    here = files(__package__)
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)} - synflow</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<style>\n{style}</style>\n</head>\n<body>\n'
        f'<main>\n<header><div><h1>{escape(title)}</h1><p class="sub">{escape(sub)}</p></div>'
        f'<button type="button" class="theme" hidden>Dark theme</button></header>\n'
        + "\n".join(sections)
        + f"\n<footer>Made by synflow. Nothing in this file is loaded from elsewhere.</footer>\n</main>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def section(title: str, body: str) -> str:
    """A section of the page with its heading."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>"


def plots(figures: Sequence[str]) -> str:
    """Figures side by side if the page is wide enough."""
    return f'<div class="plots">{"".join(figures)}</div>' if figures else "<p>There is nothing to draw.</p>"


def table_of(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], wide: Sequence[int] = ()) -> str:
    """A table that sorts by a click on a heading; columns in `wide` are hidden on a phone."""
    extra = [' class="wide"' if index in wide else "" for index in range(len(heads))]
    top = "".join(
        f'<th scope="col"{extra[i]}><button type="button">{escape(head)}</button></th>' for i, head in enumerate(heads)
    )
    body = "".join(
        "<tr>" + "".join(f'<td{extra[i]} data-value="{escape(str(key))}">{_breakable(text)}</td>'
                         for i, (text, key) in enumerate(row)) + "</tr>\n"
        for row in rows
    )  # fmt: skip
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="sortable">'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def _breakable(text: str) -> str:
    """Allow line breaks in long names after each dot."""
    return escape(text).replace(".", ".<wbr>") if text[:1].isalpha() else escape(text)


def settings(rows: Mapping[str, str], short: bool = False) -> str:
    """Names with their values, one below the other, or side by side with `short`."""
    pairs = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in rows.items())
    return f'<dl class="short">{pairs}</dl>' if short else f"<dl>{pairs}</dl>"


def ratio(value: float | None) -> Cell:
    """A speed-up; a dash if it was not measured."""
    return ("-", -1) if value is None else (f"{value:.2f}x" if value < 100 else f"{value:,.0f}x", value)


def text(value: str) -> Cell:
    """Words, sorted by themselves."""
    return value, value


def number(value: float | None, unit: str = "") -> Cell:
    """A number in three digits, an integer in all of its digits; None is unlimited."""
    if value is None:
        return "unlimited", "Infinity"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return text + unit, value


def seconds(value: float) -> Cell:
    """A time with its unit."""
    return seconds_text(value), value
