"""Options that several commands share, documented once. Nothing here imports torch, so that --help is quick."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

# The tables that hold the names a user may choose from.
TABLES = {
    "model": "models.built_in.MODELS",
    "score": "pruning.scores.SCORES",
    "schedule": "pruning.schedules.SCHEDULES",
    "scope": "pruning.scopes.SCOPES",
    "data set": "experiments.data.DATASETS",
}
LIBRARY_PREFIXES = ("timm:", "torchvision:", "transformers:")


def names_of(kind: str) -> list[str]:
    """The names of a kind, sorted; their module is imported only at this call."""
    module, _, table = TABLES[kind].rpartition(".")
    return sorted(getattr(import_module(f"synflow.{module}"), table))


def completion(kind: str, *others: str) -> Callable[[str], list[str]]:
    """Completion for the shell: the names of a kind that start with the typed characters."""
    return lambda incomplete: [name for name in sorted([*names_of(kind), *others]) if name.startswith(incomplete)]


def panel_option(panel: str) -> Callable[..., Any]:
    """A function that makes options which `--help` shows under one heading; its arguments are metavar and help text."""
    return lambda metavar, text, **more: typer.Option(metavar=metavar, help=text, rich_help_panel=panel, **more)


_model, _machine = panel_option("Model"), panel_option("Machine")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=completion("model", *LIBRARY_PREFIXES),
        help="A built-in name (see `synflow models`), timm:NAME, torchvision:NAME, transformers:NAME_OR_CONFIG, or "
        "path/to/file.py:factory.",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `synflow prune` wrote.")]
ModelOfRun = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model, if it is a Python file."),
]
ModelOfMasks = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="The model, if it is a Python file or if DIR|FILE holds only masks."),
]
Seed = Annotated[int, _model("N", "Seed of the initial weights and of random scores.")]
Threads = Annotated[int | None, _machine("N", "CPU threads.", min=1, show_default="torch's choice")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that synflow wrote there earlier.")]


@dataclass(frozen=True)
class Origin:
    """What a model is built from, apart from its name."""

    input: Annotated[
        list[str] | None,
        _model("SHAPE", "Input shape, batch first: 1x3x224x224, 1x128:int64, name=1x128. Repeatable."),
    ] = None
    classes: Annotated[int | None, _model("N", "Outputs of the network.", min=1, show_default="the model's own")] = None
    weights: Annotated[
        Path | None, _model("FILE", "Weights as a safetensors file.", show_default="initialised from the seed")
    ] = None
    seed: Seed = 0
