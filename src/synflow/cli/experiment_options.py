"""Options of `paper`, `sweep` and `results`: the folder of the runs, changed settings, where and how runs execute."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SynflowError

if TYPE_CHECKING:
    from ..experiments.runs import Context
    from ..experiments.sweeps import Place


Runs = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs; finished runs are not repeated.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of all runs, e.g. images=48. Repeatable."),
]


def parse_settings(words: list[str] | None) -> dict[str, Any]:
    """Settings from `name=value`; a value is read as JSON if possible, else as text.

    >>> parse_settings(["images=48", "dataset=digits32", "drops=[3, 5]", "steps=none"])
    {'images': 48, 'dataset': 'digits32', 'drops': [3, 5], 'steps': None}
    """
    found: dict[str, Any] = {}
    for word in words or []:
        name, sign, value = word.partition("=")
        if not sign:
            raise SynflowError(f"{word!r} is no setting; write name=value")
        if name.strip() in found:
            raise SynflowError(f"--set {name.strip()} is given twice; a list of values is an axis: --grid NAME=A,B")
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)


@dataclass(frozen=True)
class Where:
    """Options that say where and how runs execute; they do not affect results."""

    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder with the data sets' published files.")
    ] = None
    runs: Runs = Path("runs")
    on: Annotated[str, typer.Option(metavar="PLACE", help="here, local (worker processes) or ray.")] = "here"
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Runs at a time (local, ray).")] = None
    threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="CPU threads of each run.")] = None
    retries: Annotated[int, typer.Option(metavar="N", min=0, help="How often a failed run is retried.")] = 2
    address: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of a Ray cluster; without it a local Ray starts.")
    ] = None
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, mps or auto.")] = "cpu"
    compile: Annotated[bool, typer.Option("--compile", help="Train through torch.compile.")] = False
    log: Annotated[list[str] | None, typer.Option(metavar="NAME", help="tensorboard, mlflow or wandb. Repeatable.")] = (
        None
    )

    def context(self) -> Context:
        """The data folder and the device of a run."""
        from ..experiments.runs import Context
        from ..experiments.training import pick_device

        return Context(
            data_dir=None if self.data_dir is None else str(self.data_dir), device=str(pick_device(self.device)),
            compile=self.compile, loggers=tuple(self.log or ()),
        )  # fmt: skip

    def place(self) -> Place:
        """Where the runs of a sweep execute, and how many at a time."""
        from ..experiments.sweeps import Place

        return Place(self.on, self.workers, self.threads, self.retries, self.address)
