"""`synflow inspect`, `certify` and `compare`: their options. What they do is in `inspect_run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .option_groups import with_groups

__all__ = ["certify", "compare", "inspect"]

Either = Annotated[Path, typer.Argument(metavar="DIR|FILE", help="A folder of `synflow prune`, or a file of masks.")]


def inspect(path: Either, json: options.Json = False) -> None:
    """Show a pruned network from its files alone: how it was made, and every layer. No model is built."""
    from .inspect_run import run_inspect

    run_inspect(path, json)


@with_groups
def certify(
    path: Either,
    *,
    model: options.ModelOfMasks = None,
    origin: options.Origin,
    write: Annotated[bool, typer.Option("--write", help="Write certificate.json into the folder anew.")] = False,
    json: options.Json = False,
) -> None:
    """Measure a pruned network anew and print its certificate; exit code 1 if no path is left.

    [bold]synflow certify pruned[/bold]

    [bold]synflow certify masks.safetensors --model resnet20[/bold]
    """
    from .inspect_run import run_certify

    run_certify(path, model, origin, write, json)


def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of `synflow prune`, or masks.")],
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a report that compares them (folders only).")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Compare pruned networks of one model layer by layer: density of each, and the overlap of their masks.

    Overlap: of the weights that either keeps, the share that both keep; beside it, what chance would give.
    """
    from .inspect_run import run_compare

    run_compare(paths, report, force, json)
