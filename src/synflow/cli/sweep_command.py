"""`synflow sweep`: many runs from a file or from lists on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SynflowError
from .experiment_options import Settings, Where, parse_settings
from .option_groups import with_groups

__all__ = ["sweep"]


@with_groups
def sweep(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A .toml, .yaml or .json file with `base` and `grid`.")
    ] = None,
    settings: Settings = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="NAME=A,B,...", help="An axis: each value is run. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    *,
    where: Where,
) -> None:
    """Run a grid of settings, from a file or the command line.

    Every combination is run once; finished runs are kept, killed ones go on from their checkpoint. `synflow results`
    shows what came out.

    [bold]synflow sweep --set model=resnet20 --grid method=synflow,snip --grid compression=10,100[/bold]
    """
    from ..experiments.configs import Config, configured
    from ..experiments.runs import is_done
    from ..experiments.sweeps import grid as make_grid
    from ..experiments.sweeps import identity, read_grid, run_sweep, unique
    from .output import say

    changes = parse_settings(settings)
    axes = {name: _values(text) for name, text in (_axis(word) for word in grid or [])}
    bases = read_grid(file) if file is not None else [Config()]
    configs = unique(c for base in bases for c in make_grid(configured(base, **changes), axes))
    if dry_run:
        for config in configs:
            say(f"{identity(config)} {'done' if is_done(config, where.runs) else 'to do'}")
        return
    outcome = run_sweep(configs, where.runs, where.context(), where.place(), tell=say)
    outcome.check()
    say(f"{len(outcome.done)} runs done in {where.runs}; see: synflow results --runs {where.runs}")


def _axis(word: str) -> tuple[str, str]:
    name, sign, values = word.partition("=")
    if not sign or not values:
        raise SynflowError(f"{word!r} is no axis; write name=value,value,...")
    return name.strip(), values


def _values(text: str) -> list[Any]:
    return [parse_settings([f"x={part}"])["x"] for part in text.split(",")]
