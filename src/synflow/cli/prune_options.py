"""The options of `synflow prune`, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from .options import Origin, completion, panel_option
from .prune_target import Target

_method = panel_option("Method")
_data = panel_option("Data (for scores that need data)")
_timing = panel_option("What --speedup times")


@dataclass(frozen=True)
class Method:
    """How weights are ranked and removed."""

    score: Annotated[
        str,
        _method(
            "NAME", "See `synflow scores`, or file.py:function (runs the file).", autocompletion=completion("score")
        ),
    ] = "synflow"
    steps: Annotated[int | None, _method("N", "Pruning steps.", show_default="100, or the score's own")] = None
    schedule: Annotated[
        str,
        _method(
            "NAME",
            "See `synflow schedules`, or file.py:function (runs the file).",
            autocompletion=completion("schedule"),
        ),
    ] = "exponential"
    scope: Annotated[
        str,
        _method(
            "NAME",
            "Which weights compete: all (global) or those of one layer. See `synflow scopes`.",
            autocompletion=completion("scope"),
        ),
    ] = "global"
    margin: Annotated[float, _method("M", "Share of the flow that a certified step may remove.")] = 0.5
    guard: Annotated[
        bool | None,
        _method(None, "Keep every layer alive. Default: on for balanced; other flow scores keep a path."),
    ] = None
    select: Annotated[list[str] | None, _method("PATTERN", "Prune only weights with matching names. Repeatable.")] = (
        None
    )
    protect: Annotated[
        list[str] | None, _method("PATTERN", "Do not prune weights with matching names. Repeatable.")
    ] = None


@dataclass(frozen=True)
class Data:
    """The examples that a score reads."""

    data: Annotated[
        str | None, _data("NAME", "A data set, see `synflow data`.", autocompletion=completion("data set"))
    ] = None
    data_dir: Annotated[Path | None, _data("DIR", "Folder of the data set.")] = None
    samples: Annotated[int, _data("N", "Examples per class that the score reads.", min=1)] = 10


@dataclass(frozen=True)
class Timing:
    """What is timed to reach a speed-up."""

    task: Annotated[str, _timing("TASK", "inference, or training (a whole step).")] = "inference"
    batch: Annotated[int, _timing("N", "Batch size.", min=1)] = 64


@dataclass(frozen=True)
class Wish:
    """The options of the command, group by group; together they determine the pruned network."""

    model: str
    target: Target
    method: Method
    data: Data
    origin: Origin
    timing: Timing
    device: str
    threads: int | None
