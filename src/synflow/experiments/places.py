"""Where runs of a sweep happen, and what becomes of them; the same for every place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError

from .configs import Config
from .runs import folder_of, is_done
from .sealed_json import read_json

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


def summary(result: Mapping[str, Any]) -> str:
    """A result in a few words."""
    outcome, seconds = result["outcome"], result["about"]["seconds"]
    accuracy = f"top-1 {outcome['top1']:.2f} %, " if isinstance(outcome.get("top1"), float) else ""
    return f"{accuracy}{seconds:.1f} s"


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
