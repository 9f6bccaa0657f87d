"""`synflow compact`, `bench` and `export`: their options. `ship_run` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .bench_options import Timed
from .option_groups import with_groups


def compact(
    folder: options.Folder,
    model: options.ModelOfRun = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Remove the dead units; write the smaller network, with the same outputs, to DIR/compact.

    Compares the outputs of both networks before it writes. The report of DIR shows the result.
    """
    from .ship_run import run_compact

    run_compact(folder, model, force, json)


@with_groups
def bench(
    folder: options.Folder, *, model: options.ModelOfRun = None, timed: Timed, json: options.Json = False
) -> None:
    """Time the dense, masked and compact network side by side on this machine; add the figures to the report."""
    from .ship_run import run_bench

    run_bench(folder, model, timed, json)


def export(
    folder: options.Folder,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX file, checked in onnxruntime.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write.", show_default="DIR/model.onnx")
    ] = None,
    masked: Annotated[bool, typer.Option("--masked", help="Export the network at its full size, with zeros.")] = False,
    fixed_batch: Annotated[bool, typer.Option("--fixed-batch", help="Keep the batch size of the example.")] = False,
    model: options.ModelOfRun = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Write the compact network as a file for other runtimes, but only if its outputs agree.

    [bold]synflow export pruned --onnx[/bold]
    """
    from .ship_run import run_export

    run_export(folder, onnx, out, masked, fixed_batch, model, force, json)
