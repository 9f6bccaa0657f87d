"""The options of `synflow bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from . import options


@dataclass(frozen=True)
class Timed:
    """What `bench` times."""

    train_batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="Batch size of the training step. Repeatable.", show_default="128"),
    ] = None
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="Batch size of inference. Repeatable.", show_default="1 and 64"),
    ] = None
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Measurements per figure.")] = 15
    threads: options.Threads = None
    onnx: Annotated[bool, typer.Option("--onnx", help="Also time onnxruntime.")] = False
    openvino: Annotated[bool, typer.Option("--openvino", help="Also time OpenVINO.")] = False
    folded: Annotated[bool, typer.Option("--folded", help="Also time inference with folded batch norms.")] = False
    forms: Annotated[
        bool, typer.Option("--forms", help="Also time folded and frozen inference, dense and compact.")
    ] = False
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Use the channels-last layout.")] = False
