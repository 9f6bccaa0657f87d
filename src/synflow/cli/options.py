"""Options that several commands share, documented once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from ..experiments.models import MODELS

__all__ = [
    "Classes", "Device", "Folder", "Force", "Inputs", "Json", "Model", "ModelOfRun", "Seed", "Threads",
    "Weights", "among",
]  # fmt: skip


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Completion for the shell: the names that start with what was typed."""
    every = sorted(names)
    return lambda incomplete: [name for name in every if name.startswith(incomplete)]


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
        "--input", metavar="SHAPE", help="Input shape, batch first: 1x3x224x224, 1x128:int64, name=1x128. Repeatable."
    ),
]
Classes = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Outputs of the network.", show_default="its own")
]
Weights = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Weights as a safetensors file.", show_default="fresh ones from the seed"),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the initial weights and of random scores.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, mps.")]
Threads = Annotated[int | None, typer.Option(metavar="N", min=1, help="CPU threads.", show_default="torch's choice")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier run of synflow wrote there.")]
