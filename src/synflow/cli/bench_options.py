"""The options of `synflow bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from . import options

__all__ = ["Timed"]


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
