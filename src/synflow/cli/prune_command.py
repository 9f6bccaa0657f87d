"""`synflow prune`: the command. `prune_run` does the work and is imported when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .option_groups import with_groups
from .prune_options import Data, Method, Timing, Wish
from .prune_target import Target

_machine = options.panel_option("Machine")


@with_groups
def prune(
    model: options.Model,
    target: Target,
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write.", show_default="writes nothing")
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
    """Prune a model; write weights, masks, certificate and report; print certificate and layers.

    Give exactly one target, and --out to keep the result.

    [bold]synflow prune vgg16_bn --compression 100 --out pruned[/bold]

    [bold]synflow prune timm:resnet50 --flops 0.25 --out pruned[/bold]

    [bold]synflow prune net.py:make --input 1x3x64x64 --density 0.05[/bold]
    """
    from .prune_run import run_prune

    run_prune(Wish(model, target, method, data, origin, timing, device, threads), out, force, json)
