"""`synflow results`: the runs of a folder as a table or a figure, on the screen or in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SynflowError
from .options import Json

# The meaning of the columns that a table shows by default.
LEGEND = {
    "top1": "% of the test images classified right",
    "connected": "inputs reach outputs",
    "empty_layers": "layers without a weight",
    "dead_layers": "layers with no weight on a path",
    "train_seconds": "seconds of training",
}

Stored = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs, or of exported tables (.csv).")]

# Tables for other programs have a row for each run; tables for people have a row for each setting.
FOR_PROGRAMS = (".csv", ".parquet")


def results(
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONDITION", help="Only runs that match, e.g. method=synflow, compression>=100, model~vgg."
        ),
    ] = None,
    runs: Stored = Path("runs"),
    mean: Annotated[
        bool | None,
        typer.Option(
            "--mean/--each",
            help="Mean and standard deviation over seeds, or each run.",
            show_default="mean; each in .csv and .parquet, and with --columns",
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Columns to show; `all` for every one.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option(metavar="A,-B,...", help="Sort by these columns; a minus sorts in descending order.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table: .csv, .md, .tex or .parquet.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the runs: .svg, .png or .pdf.")] = None,
    x: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Setting on the x axis of the figure.", show_default="compression"),
    ] = None,
    y: Annotated[str, typer.Option(metavar="NAME", help="Result on the y axis of the figure.")] = "top1",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one interactive page with all runs.")] = None,
    as_json: Json = False,
) -> None:
    """Show, query, draw and export the results of runs. Varying settings become columns.

    Damaged files are reported and skipped.

    [bold]synflow results 'method=synflow' 'compression>=100' --out table.tex[/bold]

    [bold]synflow results --figure sweep.svg[/bold]
    """
    from ..experiments.results import collect, select
    from .output import print_json, say

    rows, problems = collect(runs)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    rows = select(rows, where or [])
    if not rows and not as_json:
        say(f"no finished runs in {runs}" + (" meet the conditions" if where else ""))
        return
    each = not mean if mean is not None else columns is not None or (out is not None and out.suffix in FOR_PROGRAMS)
    made, names = _table(rows, each, columns, sort, whole=out is not None and out.suffix in FOR_PROGRAMS)
    if figure is not None:
        _draw(rows, figure, x, y)
    _write(rows, made, names, out, html)
    if as_json:
        print_json(rows)
    elif figure is None and html is None and out is None:
        _show(rows, made, names, each, asked=columns is not None)


def _draw(rows: list[dict[str, Any]], figure: Path, x: str | None, y: str) -> None:
    from ..experiments.figures.own import draw_own
    from .output import say

    draw_own(rows, figure, x, y)
    say(f"{_runs(rows)} drawn in {figure}")


def _write(
    rows: list[dict[str, Any]], made: list[dict[str, Any]], names: list[str], out: Path | None, html: Path | None
) -> None:
    from ..experiments.results import write_table
    from ..experiments.results_page import write_page
    from .output import say

    if html is not None:
        write_page(rows, html)
        say(f"{_runs(rows)} on {html}")
    if out is not None:
        write_table(made, out, names)
        say(f"{_runs(rows)} written to {out}")


def _table(
    rows: list[dict[str, Any]], each: bool, columns: str | None, sort: str | None, whole: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of the table, sorted, and its columns."""
    from ..experiments.results import columns as all_columns
    from ..experiments.summaries import in_order, measured, over_seeds, varying

    known, differ = all_columns(rows), varying(rows)
    usual = [*(differ or ["model", "dataset", "method", "compression"]), "seed", *measured(rows)]
    names = known if columns == "all" or (whole and each and columns is None) else usual
    if columns not in (None, "all"):
        names = [name.strip() for name in columns.split(",")] if columns else names
    wanted = [word.strip() for word in sort.split(",")] if sort else []
    for name in (*names, *(word.removeprefix("-") for word in wanted)) if rows else ():
        if name not in (*known, "runs"):
            raise SynflowError(f"no column {name!r}; choose from {', '.join(known)}")
    if each:
        return in_order(rows, [*wanted, *differ, "seed"]), names
    settings = differ or ["model", "dataset", "method", "compression"]
    chosen = [name for name in names if name not in (*settings, "seed")] if columns else measured(rows)
    made = [{**{n: rows[0].get(n) for n in settings}, **row} for row in over_seeds(rows, chosen)]
    return in_order(made, wanted), [*settings, "runs", *chosen]


def _show(rows: list[dict[str, Any]], made: list[dict[str, Any]], names: list[str], each: bool, asked: bool) -> None:
    from ..experiments.configs import Config, to_dict
    from ..experiments.summaries import Spread, shared_settings, shown
    from .output import say, say_wrapped, table

    usual = to_dict(Config())
    alike = shared_settings(rows, {**usual, **usual["recipe"]})
    if alike:
        say_wrapped(f"all: {alike}\n", 5)
        say()
    numeric = [all(isinstance(row.get(n), int | float | Spread | None) for row in made) for n in names]
    heads: list[Any] = [(n, "right") if right else n for n, right in zip(names, numeric, strict=True)]
    # A table that is cut at its right end would have settings and no result.
    keep = [] if asked else ["method", "compression", "runs", *[name for name in names if name in LEGEND][:1]]
    left_out = table(heads, [[shown(row.get(n)) for n in names] for row in made], keep=keep)
    known = [f"{name}: {LEGEND[name]}" for name in names if name in LEGEND and name not in left_out]
    if known:
        say_wrapped(f"({'; '.join(known)})", 1)
    spread = "" if each or all(row["runs"] == 1 for row in made) else "; mean ± standard deviation over seeds"
    if left_out:
        say_wrapped(
            f"\nno room for {', '.join(left_out)}; --columns chooses, conditions such as "
            "task=train leave fewer, --out FILE.csv has all",
            2,
        )
    say(f"\n{_runs(rows)}{spread}")


def _runs(rows: list[dict[str, Any]]) -> str:
    return f"{len(rows)} run{'s' * (len(rows) != 1)}"
