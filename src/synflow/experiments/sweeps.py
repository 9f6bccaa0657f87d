"""Many runs: a grid of settings, and three places to do them in."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError, need

from .configs import Config, canonical, configured, identity, starting_point
from .places import Outcome, Place, Tell, gather, summary
from .runs import BusyError, Context, execute, is_done

__all__ = ["Outcome", "Place", "gather", "grid", "identity", "read_grid", "run_here", "run_sweep", "unique"]

RANGE = re.compile(r"\s*(-?\d{1,9})\.\.(-?\d{1,9})\s*")
# An axis has at most this many values: more is a typing error.
MOST_RUNS = 10_000
# Seconds between two looks at runs that are all in other hands.
PAUSE = 0.2


def grid(base: Config, axes: Mapping[str, Any]) -> list[Config]:
    """Every combination of the settings on the axes, each run once; an axis may be a range of whole numbers.

    >>> len(grid(Config(), {"method": ["synflow", "random"], "compression": [1, 10, 100]}))
    5
    >>> [config.seed for config in grid(Config(), {"seed": "0..2"})]
    [0, 1, 2]
    """
    values = {name: axis_values(name, given) for name, given in axes.items()}
    combinations = itertools.product(*values.values())
    return unique(configured(base, **dict(zip(values, chosen, strict=True))) for chosen in combinations)


def axis_values(name: str, given: Any) -> list[Any]:
    """The values of an axis: a list, in which `0..2` stands for 0, 1, 2, or such a range alone."""
    found: list[Any] = []
    for value in [given] if isinstance(given, str) else given if isinstance(given, Sequence) else []:
        span = RANGE.fullmatch(value) if isinstance(value, str) else None
        if span is None and isinstance(given, str):
            raise SynflowError(f"the axis {name} must be a list of values or a range such as 0..2, got {given!r}")
        found += [value] if span is None else list(range(int(span[1]), int(span[2]) + 1)[: MOST_RUNS + 1])
    if not found:
        raise SynflowError(f"the axis {name} must be a list of values, got {given!r}")
    if len(found) > MOST_RUNS:
        raise SynflowError(f"the axis {name} has more than {MOST_RUNS:,} values; write less of them")
    return found


def unique(configs: Iterable[Config]) -> list[Config]:
    """Each run once, in order; at compression 1 all methods are one run."""
    return list({identity(config): canonical(config) for config in configs}.values())


def read_grid(path: Path) -> list[Config]:
    """Runs from a TOML, YAML or JSON file: a table `base` of settings, a table `grid` of lists, a list `runs`.

    Each entry of `runs` is a table of settings, and is combined with the grid.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as cause:
        raise SynflowError(f"{path} cannot be read: {getattr(cause, 'strerror', None) or cause}") from cause
    try:
        if path.suffix == ".toml":
            content = _toml().loads(text)
        elif path.suffix in (".yaml", ".yml"):
            content = need("yaml", extra="experiments").safe_load(text)
        elif path.suffix == ".json":
            content = json.loads(text)
        else:
            raise SynflowError(f"{path}: a sweep is a .toml, .yaml or .json file")
    except SynflowError:
        raise
    except RecursionError:
        raise SynflowError(f"{path} cannot be understood: it is nested too deeply") from None
    except Exception as cause:
        raise SynflowError(f"{path} cannot be understood: {' '.join(str(cause).split())}") from cause
    if not isinstance(content, dict) or not set(content) <= {"base", "grid", "runs"} or not content:
        got = list(content) if isinstance(content, dict) else content
        raise SynflowError(f"{path}: expected the tables 'base' and 'grid' and the list 'runs', got {got!r:.60}")
    base: Any = content.get("base") or {}
    axes: Any = content.get("grid") or {}
    sets: Any = content.get("runs") or [{}]
    if not all(isinstance(table, dict) for table in (base, axes)) or not isinstance(sets, list):
        raise SynflowError(f"{path}: 'base' and 'grid' are tables of settings, 'runs' is a list of them")
    if not all(isinstance(settings, dict) for settings in sets):
        raise SynflowError(f"{path}: each entry of 'runs' is a table of settings, got {sets!r:.60}")
    merged = [{**base, **settings} for settings in sets]
    return unique(c for one in merged for c in grid(configured(starting_point(one), **one), axes))


def _toml() -> Any:
    return need("tomllib" if sys.version_info >= (3, 11) else "tomli", extra="experiments")


def run_here(configs: Sequence[Config], root: Path, context: Context, place: Place, tell: Tell) -> Outcome:
    """Do all runs in this process; one that another process is at is waited for, and done here if that one dies."""
    import torch

    done: list[str] = []
    failed: dict[str, str] = {}
    before, waiting = torch.get_num_threads(), list(configs)
    try:
        torch.set_num_threads(place.threads or before)
        while waiting:
            busy: list[Config] = []
            for config in waiting:
                name, known = identity(config), is_done(config, root)
                count = f"[{len(done) + len(failed) + 1}/{len(configs)}]"
                try:
                    found = execute(config, root, context)
                    done.append(name)
                    tell(f"{count} {name} {'was done' if known else summary(found)}")
                except BusyError as other:
                    if len(waiting) == len(configs):
                        tell(f"{other}; left to it for now")
                    busy.append(config)
                except Exception as cause:
                    failed[name] = str(cause)
                    tell(f"{count} {name} FAILED: {cause}")
            if len(busy) == len(waiting):
                time.sleep(PAUSE)
            waiting = busy
    finally:
        torch.set_num_threads(before)
    return Outcome(tuple(done), failed)


def run_sweep(
    configs: Sequence[Config],
    root: Path,
    context: Context | None = None,
    place: Place | None = None,
    *,
    tell: Tell = lambda _: None,
) -> Outcome:
    """Do all runs, each once; folders and results are the same in every place."""
    from .local import run_local
    from .on_ray import run_on_ray
    from .preflight import check_before

    places = {"here": run_here, "local": run_local, "ray": run_on_ray}
    context, place, configs = context or Context(), place or Place(), unique(configs)
    if place.on not in places:
        raise SynflowError(f"no place {place.on!r} to run on; choose from {', '.join(places)}")
    if context.data_dir is not None:
        context = replace(context, data_dir=str(Path(context.data_dir).expanduser().resolve()))
    check_before([config for config in configs if not is_done(config, root)], context)
    return places[place.on](configs, root, context, place, tell)
