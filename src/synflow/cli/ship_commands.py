"""`synflow compact`, `bench` and `export`: their options. What they do is in `ship_run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .bench_options import Timed
from .option_groups import with_groups

__all__ = ["bench", "compact", "export"]


def compact(
    folder: options.Folder,
    model: options.ModelOfRun = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Remove the dead units: write the smaller network with the same outputs to DIR/compact.

    Outputs of both networks are compared before anything is written; the report of DIR shows the result.
    """
    from .ship_run import run_compact

    run_compact(folder, model, force, json)


@with_groups
def bench(
    folder: options.Folder, *, model: options.ModelOfRun = None, timed: Timed, json: options.Json = False
) -> None:
    """Time the network dense, masked and compact, side by side on this machine; figures go into the report."""
    from .ship_run import run_bench

    run_bench(folder, model, timed, json)


def export(
    folder: options.Folder,
    onnx: Annotated[bool, typer.Option("--onnx", help="As an ONNX file, which onnxruntime has run.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write.", show_default="DIR/model.onnx")
    ] = None,
    masked: Annotated[bool, typer.Option("--masked", help="The network at its full size, zeros in place.")] = False,
    fixed_batch: Annotated[bool, typer.Option("--fixed-batch", help="Keep the batch size of the example.")] = False,
    model: options.ModelOfRun = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Write the compact network as a file for other runtimes; nothing is written unless outputs agree.

    [bold]synflow export pruned --onnx[/bold]
    """
    from .ship_run import run_export

    run_export(folder, onnx, out, masked, fixed_batch, model, force, json)
