"""`synflow sweep`: many runs from a file or from lists on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SynflowError
from .experiment_options import Settings, Where, parse_settings
from .option_groups import with_groups

if TYPE_CHECKING:
    from ..experiments.configs import Config


@with_groups
def sweep(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A .toml, .yaml or .json file with `base`, `grid` and `runs`."),
    ] = None,
    settings: Settings = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="NAME=A,B,...", help="An axis of values; seed=0..2 is a range. Repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which runs are missing, and how long they take.")
    ] = False,
    list_settings: Annotated[bool, typer.Option("--list", help="List all settings with their defaults.")] = False,
    *,
    where: Where,
) -> None:
    """Run a grid of settings, from a file or the command line.

    Every combination runs once. Finished runs are kept, killed runs resume from their checkpoint. `synflow results`
    shows the results. Model, method and schedule may be your own functions, file.py:function; this runs the file.

    [bold]synflow sweep --set model=fc --grid method=synflow,snip --grid compression=10,100 --grid seed=0..2[/bold]
    """
    from ..experiments.sweeps import run_sweep
    from .interrupts import told_how_far
    from .output import say

    if list_settings:
        _list()
        return
    configs = _configs(file, parse_settings(settings), _axes(grid))
    if dry_run:
        _tell_plan(configs, where)
        return
    with told_how_far(kept=f"finished runs are kept in {where.runs}: start again to go on") as milestones:

        def tell(text: str) -> None:
            say(text)
            count = re.match(r"\[(\d+)/(\d+)\]", text)
            milestones.last = f"after {count[1]} of {count[2]} runs" if count else milestones.last

        outcome = run_sweep(configs, where.runs, where.context(), where.place(), tell=tell)
    outcome.check()
    say(f"{len(outcome.done)} runs done in {where.runs}; see: synflow results --runs {where.runs}")


def _configs(file: Path | None, changes: dict[str, Any], axes: dict[str, list[Any]]) -> list[Config]:
    """The runs: those of the file, or the usual ones, with the settings and axes of the command line."""
    from ..experiments.configs import configured, starting_point
    from ..experiments.sweeps import grid as make_grid
    from ..experiments.sweeps import read_grid, unique
    from .output import say_wrapped

    for name in axes:
        if name in changes:
            raise SynflowError(f"{name} is given by --set and by --grid; leave one of them out")
    if file is None:
        datasets = axes.pop("dataset", [changes.get("dataset")])
        bases = [starting_point(chosen) for chosen in ({"dataset": name} if name else {} for name in datasets)]
        bases = [configured(base, **({"dataset": n} if n else {})) for base, n in zip(bases, datasets, strict=True)]
    else:
        bases = read_grid(file)
    configs = unique(c for base in bases for c in make_grid(configured(base, **changes), axes))
    asked = axes.get("method", [changes["method"]] if "method" in changes else [])
    if asked and "dense" not in asked and any(config.method == "dense" for config in configs):
        names = ", ".join(map(str, asked))
        say_wrapped(f"at compression 1 nothing is pruned: there {names} is the dense network, run once", 2)
    return configs


def _axes(words: list[str] | None) -> dict[str, list[Any]]:
    """Axes from `name=value,value`; an axis that is given twice has the values of both.

    >>> _axes(["seed=0..1", "drops=[3,5],[4]", "seed=7"])
    {'seed': ['0..1', 7], 'drops': [[3, 5], [4]]}
    """
    found: dict[str, list[Any]] = {}
    for word in words or []:
        name, sign, values = word.partition("=")
        if not sign or not values:
            raise SynflowError(f"{word!r} is no axis; write name=value,value,...")
        parts = re.findall(r"\[[^\]]*\]|[^,\[]+", values)
        found.setdefault(name.strip(), []).extend(parse_settings([f"x={part}"])["x"] for part in parts)
    return found


def _tell_plan(configs: Sequence[Config], where: Where) -> None:
    """Print the varying settings, the finished runs, and the estimated time of the others."""
    from ..experiments.configs import Config, identity, to_dict
    from ..experiments.plan import duration, estimate
    from ..experiments.preflight import check_before
    from ..experiments.runs import is_done
    from ..experiments.summaries import shared_settings, shown, varying
    from .output import say, say_wrapped, table

    plain = [to_dict(config) for config in configs]
    rows = [{**config, **config["recipe"]} for config in plain]
    usual = to_dict(Config())
    say_wrapped(f"all: {shared_settings(rows, {**usual, **usual['recipe']})}", 5)
    say()
    names = [*(varying(rows) or ["method", "compression"]), *(["seed"] if len({r["seed"] for r in rows}) > 1 else [])]
    done = [is_done(config, where.runs) for config in configs]
    table(
        [*names, "state", "run"],
        [
            [*(shown(row[name]) for name in names), "done" if ready else "to do", identity(config)]
            for row, config, ready in zip(rows, configs, done, strict=True)
        ],
    )
    left = [config for config, ready in zip(configs, done, strict=True) if not ready]
    say(
        f"\n{len(configs)} run{'s' * (len(configs) != 1)}, {len(left)} to do"
        + (f": about {duration(estimate(left))}" if left else "")
    )
    check_before(left, where.context())


def _list() -> None:
    import dataclasses

    from ..experiments.configs import Config
    from ..experiments.recipes import Recipe
    from ..experiments.summaries import shown
    from .output import say, table

    for title, record in (("run", Config), ("training", Recipe)):
        fields = [f for f in dataclasses.fields(record) if f.name != "recipe"]
        table([title, "kind", "default"], [[f.name, str(f.type), shown(f.default) or "-"] for f in fields])
        say()
    say("unless told otherwise, digits are trained 20 epochs at rate 0.05 (one_cycle)")
