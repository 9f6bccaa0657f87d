"""`synflow compact`, `bench` and `export`: their options. What they do is in `ship_run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .option_groups import with_groups

__all__ = ["Timed", "bench", "compact", "export"]


@dataclass(frozen=True)
class Timed:
    """What `bench` times."""

    train_batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="Batch of the training step; repeatable.", show_default="128"),
    ] = None
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="Batch of inference; repeatable.", show_default="1 and 64"),
    ] = None
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Measurements of each figure.")] = 15
    threads: options.Threads = None
    onnx: Annotated[bool, typer.Option("--onnx", help="Time onnxruntime as well.")] = False
    openvino: Annotated[bool, typer.Option("--openvino", help="Time OpenVINO as well.")] = False
    folded: Annotated[bool, typer.Option("--folded", help="Time inference with batch norms folded as well.")] = False
    forms: Annotated[bool, typer.Option("--forms", help="Time inference folded and frozen, dense and compact.")] = False
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Use the channels-last layout.")] = False


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
