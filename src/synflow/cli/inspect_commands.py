"""`synflow inspect`, `certify` and `compare`: their options. `inspect_run` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .option_groups import with_groups

Either = Annotated[
    Path, typer.Argument(metavar="DIR|FILE", help="A folder that `synflow prune` wrote, or a file of masks.")
]


def inspect(path: Either, json: options.Json = False) -> None:
    """Show the settings and every layer of a pruned network, from its files alone. Builds no model."""
    from .inspect_run import run_inspect

    run_inspect(path, json)


@with_groups
def certify(
    path: Either,
    *,
    model: options.ModelOfMasks = None,
    origin: options.Origin,
    write: Annotated[bool, typer.Option("--write", help="Rewrite certificate.json in the folder.")] = False,
    json: options.Json = False,
) -> None:
    """Measure a pruned network again and print its certificate; exit code 1 if no path remains.

    [bold]synflow certify pruned[/bold]

    [bold]synflow certify masks.safetensors --model resnet20[/bold]
    """
    from .inspect_run import run_certify

    run_certify(path, model, origin, write, json)


def compare(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Folders that `synflow prune` wrote, or files of masks.")
    ],
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a report that compares them (folders only).")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Compare pruned networks of one model layer by layer: densities, and the overlap of their masks.

    Overlap: of the weights that either mask keeps, the share that both keep. The next column shows the share expected
    by chance.
    """
    from .inspect_run import run_compare

    run_compare(paths, report, force, json)
