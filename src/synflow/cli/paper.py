"""`synflow paper`: run the paper's experiments, draw its figures, or say what that will take."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SynflowError
from .run_options import Settings, Where, parse_settings, with_where

__all__ = ["command"]

command = typer.Typer(
    short_help="Reproduce the paper: one word per figure.",
    invoke_without_command=True,
    context_settings={"allow_interspersed_args": True},
    rich_markup_mode="rich",
    subcommand_metavar="",
    epilog="Examples: synflow paper list · synflow paper fig2 fig3 fig4 --scale paper --data-dir DIR · "
    "synflow paper plan --scale paper · synflow paper draw fig6 --runs runs",
)


@command.callback()
@with_where
def paper(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="list|plan|draw|FIGURE",
            help="Figures to reproduce, or all; before them `plan` to only estimate, `draw` to only draw.",
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(metavar="SCALE", help="smoke (seconds), laptop (minutes to two hours), paper (in full).")
    ] = "laptop",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where figures and tables go.")] = Path("figures"),
    settings: Settings = None,
    *,
    where: Where,
) -> None:
    """Reproduce the paper's experiments: each figure is a word, `synflow paper list` shows them.

    SNIP and GraSP need images: --data-dir names their folder. Everything can be stopped and started again.
    """
    from ..experiments.figures import EXPERIMENTS
    from ..experiments.paper import draw, reproduce
    from .output import say

    words = list(names or ["list"])
    verb = words.pop(0) if words[0] in ("list", "plan", "draw") else "run"
    chosen = words or list(EXPERIMENTS)
    if chosen == ["all"]:
        chosen = list(EXPERIMENTS)
    for name in chosen:
        if name not in EXPERIMENTS:
            raise SynflowError(f"no figure {name!r}; choose from {', '.join(EXPERIMENTS)}, all")
    changes = parse_settings(settings)
    if verb == "list":
        _list()
        return
    if verb == "plan":
        _plan(chosen, scale, changes)
        return
    line = _command_line(sys.argv)
    if verb == "draw":
        for name in chosen:
            _show(name, draw(name, scale, where.runs, out, settings=changes, command=line))
        return
    made = reproduce(
        chosen, scale, where.runs, out, where.context(), where.place(), settings=changes, tell=say, command=line
    )
    for one in made:
        if one.drawing is not None:
            _show(one.name, one.drawing)
    for one in made:
        one.outcome.check()


def _command_line(argv: list[str]) -> str:
    return (
        shlex.join(["synflow", *argv[1:]]) if "synflow" in Path(argv[0]).name or argv[0].endswith("__main__.py") else ""
    )


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
        [(name, f"{e.runs:,}", _hours(e.hours(speed)), _hours(e.hours(GPU_FLOPS)), _bytes(e.disk)) for name, e in rows],
    )
    say("Hours are upper bounds: compact networks train faster.")
    say("Disk counts a checkpoint for every run at once.")


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _show(name: str, drawing: Any) -> None:
    from .output import say, table

    say()
    columns = list(dict.fromkeys(key for row in drawing.table for key in row))
    table(columns, [[str(row.get(key, "")) for key in columns] for row in drawing.table], title=name)
    for note in drawing.notes:
        say(f"  {note}")
    say("written: " + ", ".join(str(path) for path in drawing.paths))
