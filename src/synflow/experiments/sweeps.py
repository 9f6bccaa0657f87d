"""Many runs: a grid of settings, and three places to do them in."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError, need

from .configs import Config, canonical, configured, identity
from .runs import BusyError, Context, execute, folder_of, is_done
from .sealed_json import read_json

__all__ = ["Outcome", "Place", "gather", "grid", "identity", "read_grid", "run_here", "run_sweep", "unique"]

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where runs happen: `here`, in `local` worker processes or on `ray`; how many at a time and on how many cores.

    `retries` is how often a run is tried again when its worker dies or the machine fails; `address` is a Ray cluster.
    """

    on: str = "here"
    workers: int | None = None
    threads: int | None = None
    retries: int = 2
    address: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a sweep: names of runs done and of runs that failed, with the reason."""

    done: tuple[str, ...]
    failed: dict[str, str]

    def check(self) -> None:
        """Raise an error if a run failed."""
        if self.failed:
            name, why = next(iter(self.failed.items()))
            raise SynflowError(
                f"{len(self.failed)} of {len(self.done) + len(self.failed)} runs failed, the first is {name}: {why}; "
                "the others are kept: put it right and start again"
            )


def grid(base: Config, axes: Mapping[str, Sequence[Any]]) -> list[Config]:
    """Every combination of the settings on the axes, each run once.

    >>> len(grid(Config(), {"method": ["synflow", "random"], "compression": [1, 10, 100]}))
    5
    """
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SynflowError(f"the axis {name} must be a list of values, got {values!r}")
    combinations = itertools.product(*axes.values())
    return unique(configured(base, **dict(zip(axes, values, strict=True))) for values in combinations)


def unique(configs: Iterable[Config]) -> list[Config]:
    """Each run once, in order; at compression 1 all methods are one run."""
    return list({identity(config): canonical(config) for config in configs}.values())


def read_grid(path: Path) -> list[Config]:
    """A grid from a TOML, YAML or JSON file: a table `base` of settings and a table `grid` of lists."""
    try:
        text = path.read_text()
    except OSError as cause:
        raise SynflowError(f"{path} cannot be read: {cause.strerror or cause}") from cause
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
    except Exception as cause:
        raise SynflowError(f"{path} cannot be understood: {cause}") from cause
    if not isinstance(content, dict) or not set(content) <= {"base", "grid"} or not content:
        raise SynflowError(f"{path}: expected the tables 'base' and 'grid', got {list(content or ())!r}")
    base = configured(Config(), **(content.get("base") or {}))
    return grid(base, content.get("grid") or {})


def _toml() -> Any:
    return need("tomllib" if sys.version_info >= (3, 11) else "tomli", extra="experiments")


def run_here(configs: Sequence[Config], root: Path, context: Context, place: Place, tell: Tell) -> Outcome:
    """Do all runs in this process; one that another process is at is left to it."""
    import torch

    done, failed = [], {}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(place.threads or before)
        for number, config in enumerate(configs, 1):
            name = identity(config)
            try:
                known = is_done(config, root)
                found = execute(config, root, context)
                done.append(name)
                tell(f"[{number}/{len(configs)}] {name} {'was done' if known else summary(found)}")
            except BusyError as busy:
                failed[name] = str(busy)
                tell(f"[{number}/{len(configs)}] {busy}; left to it")
            except Exception as cause:
                failed[name] = str(cause)
                tell(f"[{number}/{len(configs)}] {name} FAILED: {cause}")
    finally:
        torch.set_num_threads(before)
    return Outcome(tuple(done), failed)


def summary(result: Mapping[str, Any]) -> str:
    """A result in a few words."""
    outcome, seconds = result["outcome"], result["about"]["seconds"]
    accuracy = f"top-1 {outcome['top1']:.2f} %, " if isinstance(outcome.get("top1"), float) else ""
    return f"{accuracy}{seconds:.1f} s"


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

    places = {"here": run_here, "local": run_local, "ray": run_on_ray}
    context, place, configs = context or Context(), place or Place(), unique(configs)
    if place.on not in places:
        raise SynflowError(f"no place {place.on!r} to run on; choose from {', '.join(places)}")
    if context.data_dir is not None:
        context = replace(context, data_dir=str(Path(context.data_dir).expanduser().resolve()))
    return places[place.on](configs, root, context, place, tell)


def gather(configs: Sequence[Config], root: Path) -> Outcome:
    """What is in the folders now."""
    done, failed = [], {}
    for config in configs:
        folder = folder_of(config, root)
        if is_done(config, root):
            done.append(folder.name)
            continue
        try:
            failed[folder.name] = read_json(folder / "failure.json")["error"]
        except (SynflowError, KeyError):
            failed[folder.name] = "its worker died each time it was tried"
    return Outcome(tuple(done), failed)
