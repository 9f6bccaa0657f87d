"""`synflow prune`: its options. What it does is in `prune_run`, which is imported when the command runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from . import options
from .option_groups import with_groups
from .options import completion, panel_option
from .prune_target import Target

__all__ = ["Data", "Method", "Timing", "prune"]

_method = panel_option("Method")
_data = panel_option("Data (for scores that read some)")
_timing = panel_option("What --speedup times")
_machine = panel_option("Machine")


@dataclass(frozen=True)
class Method:
    """How weights are ranked and removed."""

    score: Annotated[str, _method("NAME", "See `synflow scores`.", autocompletion=completion("score"))] = "synflow"
    steps: Annotated[int | None, _method("N", "Pruning steps.", show_default="100, or the score's own")] = None
    schedule: Annotated[str, _method("NAME", "See `synflow schedules`.", autocompletion=completion("schedule"))] = (
        "exponential"
    )
    scope: Annotated[
        str,
        _method(
            "NAME",
            "Rank weights across the network (global) or within layers (layer, uniform, erk).",
            autocompletion=completion("scope"),
        ),
    ] = "global"
    margin: Annotated[float, _method("M", "Share of the flow a certified step may remove.")] = 0.5
    guard: Annotated[bool, _method(None, "Split steps of flow scores that could disconnect the network.")] = True
    select: Annotated[list[str] | None, _method("PATTERN", "Prune only weights of these names. Repeatable.")] = None
    protect: Annotated[list[str] | None, _method("PATTERN", "Leave weights of these names alone. Repeatable.")] = None


@dataclass(frozen=True)
class Data:
    """The examples that a score reads."""

    data: Annotated[
        str | None, _data("NAME", "A data set, see `synflow data`.", autocompletion=completion("data set"))
    ] = None
    data_dir: Annotated[Path | None, _data("DIR", "Where the data set is.")] = None
    samples: Annotated[int, _data("N", "Examples per class that the score reads.", min=1)] = 10


@dataclass(frozen=True)
class Timing:
    """What is timed to reach a speed-up."""

    task: Annotated[str, _timing("TASK", "inference, or training: a whole step.")] = "inference"
    batch: Annotated[int, _timing("N", "Batch size.", min=1)] = 64


@with_groups
def prune(
    model: options.Model,
    target: Target,
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write.", show_default="nothing is written")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
    method: Method,
    data: Data,
    origin: options.Origin,
    device: Annotated[str, _machine("NAME", "Where to compute: cpu, cuda, mps.")] = "cpu",
    threads: options.Threads = None,
    timing: Timing,
) -> None:
    """Prune a model: write weights, masks, certificate and report, print certificate and layers.

    Give one target, and --out to keep the result.

    [bold]synflow prune vgg16_bn --compression 100 --out pruned[/bold]

    [bold]synflow prune timm:resnet50 --flops 0.25 --out pruned[/bold]

    [bold]synflow prune net.py:make --input 1x3x64x64 --density 0.05[/bold]
    """
    from .prune_run import Wish, run_prune

    run_prune(Wish(model, target, method, data, origin, timing, device, threads), out, force, json)
