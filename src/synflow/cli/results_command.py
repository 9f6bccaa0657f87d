"""`synflow results`: all runs of a folder as one table, on the screen or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .experiment_options import Runs
from .options import Json

__all__ = ["results"]

SHOWN = ("model", "dataset", "method", "compression", "seed", "top1", "connected", "train_seconds")


def results(
    where: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONDITION", help="Only runs with e.g. method=synflow, compression>=100, model~vgg."),
    ] = None,
    runs: Runs = Path("runs"),
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Columns to show; `all` for every one.")
    ] = None,
    sort: Annotated[str | None, typer.Option(metavar="COLUMN", help="Sort by this column.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a .csv, .md or .parquet file.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one page to look at all runs.")] = None,
    as_json: Json = False,
) -> None:
    """Show, query and export the results of runs: one row per finished run. Damaged files are named and left out.

    [bold]synflow results 'method=synflow' 'compression>=100' --out table.csv[/bold]
    """
    import sys

    from ..errors import SynflowError
    from ..experiments.results import collect, columns as all_columns, select, write_table  # isort: skip
    from ..experiments.results_page import write_page
    from .output import print_json, say, table

    rows, problems = collect(runs)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    rows = select(rows, where or [])
    known = all_columns(rows)
    if sort is not None:
        if rows and sort not in known:
            raise SynflowError(f"no column {sort!r}; choose from {', '.join(known)}")
        rows.sort(key=lambda row: (row.get(sort) is None, row.get(sort) if row.get(sort) is not None else 0))
    wanted = known if columns == "all" else columns.split(",") if columns else [n for n in SHOWN if n in known]
    for name in wanted:
        if rows and name not in known:
            raise SynflowError(f"no column {name!r}; choose from {', '.join(known)}")
    if out is not None:
        write_table(rows if columns is None else [{n: row.get(n) for n in wanted} for row in rows], out)
        say(f"{len(rows)} runs written to {out}")
    elif html is not None:
        write_page(rows, html)
        say(f"{len(rows)} runs on {html}")
    elif as_json:
        print_json(rows)
    elif not rows:
        say(f"no finished runs in {runs}" + (" meet the conditions" if where else ""))
    else:
        table(wanted, [[_cell(row.get(name)) for name in wanted] for row in rows])
        say(f"{len(rows)} runs")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
