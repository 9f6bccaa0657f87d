"""Output of the command line: tables for people, JSON for machines, progress bars only on a terminal."""

from __future__ import annotations

import math
import shlex
import sys
import textwrap
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..support.json_files import json_text
from ..support.numbers import percent

if TYPE_CHECKING:
    from ..reporting.facts import LayerFacts


# Characters of a bar; with it a table of layers fits 80 columns.
BAR = 12
EIGHTHS = " ▏▎▍▌▋▊▉█"


def command_line() -> str:
    """The typed command; empty if another program called synflow."""
    program = Path(sys.argv[0]).name
    return shlex.join(["synflow", *sys.argv[1:]]) if "synflow" in program or program == "__main__.py" else ""


def console() -> Console:
    """A console on the current standard output, which tests and pipes replace."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=False)


def say(text: str = "") -> None:
    """A line for people, on standard output."""
    console().print(text, markup=False, soft_wrap=True)


def say_wrapped(text: str, indent: int) -> None:
    """Lines that may be long, wrapped to the terminal; continuation lines are indented by `indent` spaces."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and line.startswith(" " * indent):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    for line in lines:
        say("\n".join(textwrap.wrap(line, console().width, subsequent_indent=" " * indent)) or "")


def print_json(value: Any) -> None:
    """One JSON document on standard output; infinite numbers become null."""
    sys.stdout.write(json_text(value))


def progress() -> bool:
    """Whether to show progress bars: they go to standard error, and only to a terminal."""
    return sys.stderr.isatty()


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Show a line on the terminal during work that has no progress bar."""
    if not progress():
        yield
        return
    print(f"{what} ...", end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(" " * (len(what) + 4), end="\r", file=sys.stderr, flush=True)


def table(
    columns: Sequence[str | tuple[str, str]],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    keep: Container[str] = (),
) -> list[str]:
    """A table without lines; a column is its heading, or its heading and "right".

    Cells wrap between words, never inside one. Columns that do not fit are omitted, and returned; those to `keep` have
    room first.
    """
    rows = [list(row) for row in rows]
    heads = [(column, "left") if isinstance(column, str) else column for column in columns]
    least = [max(map(len, _words(heads[i][0], *(row[i] for row in rows)))) for i in range(len(heads))]
    for i, (_, justify) in enumerate(heads):
        if i == 0 or justify == "right":
            least[i] = max([least[i], *(len(row[i]) for row in rows)])
    kept = [i for i, (heading, _) in enumerate(heads) if heading in keep]
    room = console().width + 2 - sum(least[i] + 2 for i in kept)
    shown = [i for i in range(len(heads)) if i in kept or (room := room - least[i] - 2) >= 0] or [0]
    made = Table(
        title=title, box=None, pad_edge=False, header_style="bold", title_justify="left", show_header=any(columns)
    )
    for i in shown:
        heading, justify = heads[i]
        made.add_column(heading, justify="right" if justify == "right" else "left", min_width=least[i], overflow="fold")
    for row in rows:
        made.add_row(*(Text(row[i]) for i in shown))
    console().print(made)
    return [heading for i, (heading, _) in enumerate(heads) if i not in shown]


def _words(*texts: str) -> list[str]:
    return ["", *(word for text in texts for word in text.split())]


def layer_table(layers: Sequence[LayerFacts], measured: bool = True) -> None:
    """One line per layer: kept weights, live units, density with a bar, share of the flow; and a legend.

    Without a measurement (`measured`) live units and flow are not known.
    """
    least = min((layer.density for layer in layers if layer.kept), default=1.0)
    decades = max(1, math.ceil(-math.log10(least)))
    wide = console().width >= 76
    columns: list[str | tuple[str, str]] = [
        "layer", ("kept", "right"), ("of", "right"), ("live units", "right"), ("flow", "right"), ("density", "right"),
    ]  # fmt: skip
    rows = []
    for layer in layers:
        row = [
            _short(layer.name.removesuffix(".weight"), 22), f"{layer.kept:,}", f"{layer.total:,}",
            *([f"{layer.live_units}/{layer.units}", "-" if layer.flow_share is None else _share(layer.flow_share)]
              if measured else []),
            percent(layer.density),
        ]  # fmt: skip
        rows.append([*row, bar(layer.density, decades)] if wide else row)
    heads = columns if measured else [columns[i] for i in (0, 1, 2, 5)]
    table([*heads, f"1e-{decades}".ljust(BAR - 1) + "1"] if wide else heads, rows)
    known = "live units: with a weight on a path; flow: share of the whole flow that passes; " if measured else ""
    say_wrapped(f"({known}bar: density, logarithmic)" if wide else f"({known.rstrip('; ')})" if known else "", 1)


def bar(density: float, decades: int) -> str:
    """A bar on a logarithmic scale: empty at 10**-decades, full at one."""
    share = 1 + math.log10(density) / decades if density > 0 else 0.0
    eighths = round(max(0.0, min(1.0, share)) * BAR * 8)
    return (EIGHTHS[-1] * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def _share(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.3g}"


def _short(name: str, most: int) -> str:
    """A name without its middle: the beginning shows the block, the end the layer."""
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-(most - most // 2) :]}"
