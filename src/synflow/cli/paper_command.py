"""`synflow paper`: run the paper's experiments, draw its figures, or estimate the cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SynflowError
from ..support.numbers import bytes_text
from .experiment_options import Settings, Where, parse_settings
from .option_groups import with_groups


@with_groups
def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list|plan|draw|FIGURE",
            help="Figures to reproduce, or all. `plan` before them only estimates, `draw` only draws.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="SCALE",
            help="smoke (seconds), laptop (minutes to two hours), paper (in full).",
            show_default="laptop; with --from the one that most was run of",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for figures and tables.")] = Path("figures"),
    settings: Settings = None,
    tables: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Redraw from exported tables, without training.")
    ] = None,
    *,
    where: Where,
) -> None:
    """Reproduce figures of the paper: do the missing runs, draw the figure, write its table.

    SNIP and GraSP need images: --data-dir names their folder. You can stop at any time and continue later.

    [bold]synflow paper list[/bold]

    [bold]synflow paper fig2 fig3 fig4 --scale paper --data-dir DIR[/bold]

    [bold]synflow paper plan --scale paper[/bold]

    [bold]synflow paper draw fig6 --runs runs[/bold]

    [bold]synflow paper --from docs/results/data[/bold]
    """
    verb, chosen = _understood(names or ["draw"] if tables else names)
    changes = parse_settings(settings)
    if tables is not None:
        _redraw(tables, out, chosen, changes, scale)
    elif verb == "list":
        _list()
    elif verb == "plan":
        _plan(chosen, scale or "laptop", changes)
    else:
        _make(chosen, scale or "laptop", out, changes, where, only_draw=verb == "draw")


def _understood(names: list[str] | None) -> tuple[str, list[str]]:
    """The verb (list, plan, draw or run) and the figures it applies to."""
    from ..experiments.figures import EXPERIMENTS

    words = list(names or ["list"])
    verb = words.pop(0) if words[0] in ("list", "plan", "draw") else "run"
    chosen = list(EXPERIMENTS) if words in ([], ["all"]) else words
    for name in chosen:
        if name not in EXPERIMENTS:
            raise SynflowError(f"no figure {name!r}; choose from {', '.join(EXPERIMENTS)}, all")
    return verb, chosen


def _make(names: list[str], scale: str, out: Path, changes: dict[str, Any], where: Where, only_draw: bool) -> None:
    from ..experiments.paper import draw, reproduce
    from .output import command_line, say

    if only_draw:
        for name in names:
            _show(name, draw(name, scale, where.runs, out, settings=changes, command=command_line()))
        return
    made = reproduce(
        names, scale, where.runs, out, where.context(), where.place(), settings=changes, tell=say,
        command=command_line(),
    )  # fmt: skip
    for one in made:
        if one.drawing is not None:
            _show(one.name, one.drawing)
    for one in made:
        one.outcome.check()


def _redraw(tables: Path, out: Path, names: list[str], settings: dict[str, Any], scale: str | None) -> None:
    from ..experiments.paper import redraw
    from .output import command_line

    for name, drawing in redraw(tables, out, names, command_line(), settings, scale).items():
        _show(name, drawing)


def _list() -> None:
    from ..experiments.figures import EXPERIMENTS
    from .output import table

    rows = [(name, "yes" if e.trains else "no", e.title) for name, e in EXPERIMENTS.items()]
    table(("figure", "trains", "what it shows"), rows)


def _plan(names: list[str], scale: str, changes: dict[str, Any]) -> None:
    from ..experiments.paper import configs_of
    from ..experiments.plan import GPU_FLOPS, cpu_speed, estimate
    from ..experiments.sweeps import unique
    from .output import say, table

    speed = cpu_speed()
    everything, rows = [], []
    for name in names:
        configs = configs_of(name, scale, changes)
        everything += configs
        rows.append((name, estimate(configs)))
    rows.append(("all, shared runs once", estimate(unique(everything))))
    say(f"{scale} scale; CPU at {speed / 1e9:.0f} GFLOP/s (measured), GPU at {GPU_FLOPS / 1e12:.0f} TFLOP/s (assumed)")
    table(
        ("figure", ("runs", "right"), ("CPU hours", "right"), ("GPU hours", "right"), ("disk", "right")),
        [
            (name, f"{e.runs:,}", _hours(e.hours(speed)), _hours(e.hours(GPU_FLOPS)), bytes_text(e.disk))
            for name, e in rows
        ],
    )
    say("Hours are those of dense training on a quiet machine: compact networks are")
    say("faster, a busy machine is slower.")
    say("Disk counts a checkpoint for every run at once.")


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _show(name: str, drawing: Any) -> None:
    from .output import say, table

    say()
    columns = list(dict.fromkeys(key for row in drawing.table for key in row))
    left_out = table(columns, [[str(row.get(key, "")) for key in columns] for row in drawing.table], title=name)
    if left_out:
        say(f"  no room for {', '.join(left_out)}: see the .md file")
    for note in drawing.notes:
        say(f"  {note}")
    say("written: " + ", ".join(str(path) for path in drawing.paths))
