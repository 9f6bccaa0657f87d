"""Options that several commands share, documented once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SynflowError, similar
from ..models.built_in import MODELS

__all__ = [
    "Classes", "Device", "Folder", "Force", "Inputs", "Json", "Model", "ModelOfRun", "Seed", "Threads",
    "Weights", "among", "check_known",
]  # fmt: skip

MODEL, MACHINE = "Model", "Machine"


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Completion for the shell: the names that start with what was typed."""
    every = sorted(names)
    return lambda incomplete: [name for name in every if name.startswith(incomplete)]


def check_known(kind: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name that is not among those there are.

    >>> check_known("score", "synflo", ["synflow", "snip"])
    Traceback (most recent call last):
    synflow.errors.SynflowError: no score 'synflo' (did you mean synflow?); choose from snip, synflow
    """
    every = sorted(names)
    if name not in every:
        raise SynflowError(f"no {kind} {name!r}{similar(name, every)}; choose from {', '.join(every)}")


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=among([*MODELS, "timm:", "torchvision:", "transformers:"]),
        help="A built-in name (see `synflow models`), timm:NAME, torchvision:NAME, transformers:NAME_OR_CONFIG, or "
        "path/to/file.py:factory.",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `synflow prune` wrote.")]
ModelOfRun = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model, if it is a Python file or if the files are bare masks."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="SHAPE",
        help="Input shape, batch first: 1x3x224x224, 1x128:int64, name=1x128. Repeatable.",
        rich_help_panel=MODEL,
    ),
]
Classes = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Outputs of the network.", show_default="its own", rich_help_panel=MODEL),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Weights as a safetensors file.",
        show_default="fresh ones from the seed",
        rich_help_panel=MODEL,
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Seed of the initial weights and of random scores.", rich_help_panel=MODEL)
]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, mps.", rich_help_panel=MACHINE)]
Threads = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="CPU threads.", show_default="torch's choice", rich_help_panel=MACHINE),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON document instead of tables.")]
Force = Annotated[bool, typer.Option("--force", metavar="", help="Replace what an earlier run of synflow wrote there.")]
