"""`synflow prune`: from a model to a folder with masks, certificate and report."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..certificates.certificate import certify
from ..experiments.data import DATASETS
from ..models.sources import Source, load_model
from ..pruning.loop import Masks
from ..pruning.loop import prune as prune_model
from ..pruning.schedules import SCHEDULES
from ..pruning.scopes import SCOPES
from ..pruning.scores import SCORES
from ..reporting.facts import gather
from . import options
from .batches import scoring_data
from .output import layer_table, percent, print_json, progress, say, say_wrapped, times, watched
from .runs import check_free, next_command, write_run
from .search import Found, find_flops, find_speedup, walk
from .stopping import Milestones, told_how_far
from .targets import Target, simple_density

TASKS = {"inference": "inference", "training": "training step"}
_ADVICE = "no path is left, so training cannot help; lower the compression, or use --score synflow with its guard"
METHOD, DATA, TIMING = "Method", "Data (for scores that read some)", "What --speedup times"


def prune(
    model: options.Model,
    compression: Annotated[float | None, typer.Option(metavar="X", help="Target: keep one weight in X.")] = None,
    density: Annotated[
        float | None, typer.Option(metavar="D", help="Target: keep this share of the weights, 0 to 1.")
    ] = None,
    keep: Annotated[int | None, typer.Option(metavar="COUNT", help="Target: keep exactly so many weights.")] = None,
    flops: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Target: the compact network needs this share of the operations, 0 to 1."),
    ] = None,
    speedup: Annotated[
        float | None,
        typer.Option(metavar="X", help="Target: the compact network runs X times faster, measured here."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write.", show_default="nothing is written")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
    score: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="See `synflow scores`.", rich_help_panel=METHOD, autocompletion=options.among(SCORES)
        ),
    ] = "synflow",
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Pruning steps.", show_default="100, or the score's own", rich_help_panel=METHOD
        ),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="See `synflow schedules`.",
            rich_help_panel=METHOD,
            autocompletion=options.among(SCHEDULES),
        ),
    ] = "exponential",
    scope: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Rank weights across the network (global) or within layers (layer, uniform, erk).",
            rich_help_panel=METHOD,
            autocompletion=options.among(SCOPES),
        ),
    ] = "global",
    margin: Annotated[
        float,
        typer.Option(metavar="M", help="Share of the flow a certified step may remove.", rich_help_panel=METHOD),
    ] = 0.5,
    guard: Annotated[
        bool,
        typer.Option(
            metavar="", help="Split steps of flow scores that could disconnect the network.", rich_help_panel=METHOD
        ),
    ] = True,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Prune only weights of these names. Repeatable.", rich_help_panel=METHOD),
    ] = None,
    protect: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave weights of these names alone. Repeatable.", rich_help_panel=METHOD),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A data set, see `synflow data`.",
            rich_help_panel=DATA,
            autocompletion=options.among(DATASETS),
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the data set is.", rich_help_panel=DATA)
    ] = None,
    samples: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Examples per class that the score reads.", rich_help_panel=DATA),
    ] = 10,
    input: options.Inputs = None,
    classes: options.Classes = None,
    weights: options.Weights = None,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    task: Annotated[
        str, typer.Option(metavar="TASK", help="inference, or training: a whole step.", rich_help_panel=TIMING)
    ] = "inference",
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Batch size.", rich_help_panel=TIMING)] = 64,
) -> None:
    """Prune a model: write weights, masks, certificate and report, print certificate and layers.

    Give one target, and --out to keep the result.

    [bold]synflow prune vgg16_bn --compression 100 --out pruned[/bold]

    [bold]synflow prune timm:resnet50 --flops 0.25 --out pruned[/bold]

    [bold]synflow prune net.py:make --input 1x3x64x64 --density 0.05[/bold]
    """
    target = Target(compression, density, keep, flops, speedup)
    for kind, name, names in (
        ("score", score, SCORES), ("schedule", schedule, SCHEDULES), ("scope", scope, SCOPES), ("task", task, TASKS),
        ("data set", data or "digits", DATASETS),
    ):  # fmt: skip
        options.check_known(kind, name, names)
    if out is not None:
        check_free(out, force)
    if threads is not None:
        torch.set_num_threads(threads)
    batches = scoring_data(data, data_dir, score, samples, seed)
    source = load_model(
        model, inputs=input or batches.inputs, classes=classes or batches.classes, seed=seed, weights=weights,
        device=device,
    )  # fmt: skip
    settings: dict[str, Any] = dict(
        score=score, steps=steps, schedule=schedule, scope=scope, margin=margin, guard=guard, seed=seed,
        select=select or None, protect=protect or (), data=batches.batches,
    )  # fmt: skip
    start = time.perf_counter()
    masks, found = _pruned(source, target, settings, TASKS[task], batch)
    seconds = time.perf_counter() - start
    with watched("certificate and report"):
        certificate = certify(source.model, masks, source.example)
        command = shlex.join(["synflow", *sys.argv[1:]])
        benchmark = found.reached.benchmark if found else None
        facts = gather(
            source.model, masks, source.example, title=model, certificate=certificate, command=command,
            benchmark=benchmark,
        )  # fmt: skip
        if out is not None:
            write_run(out, source, masks, certificate, facts, command)
    if json:
        print_json({
            "model": model, "out": None if out is None else str(out), "seconds": seconds, "pruning": masks.about,
            "target": None if found is None else _found(found), "certificate": certificate.as_dict(),
            "layers": facts.as_dict()["layers"],
        })  # fmt: skip
    else:
        say(f"{model} at {times(certificate.compression)} by {score}, pruned in {seconds:.1f} s\n")
        say_wrapped(str(certificate), 16)
        say()
        layer_table(facts.layers)
        say()
        if found is not None:
            _tell(found, target, task, batch)
        if out is None:
            say("nothing was written; --out DIR keeps weights, masks, certificate and report")
        else:
            say(f"written to {out}: weights, masks, certificate; open {out / 'report.html'}")
            say(next_command("compact", out, model))
    if not certificate.connected:
        print(f"not connected: {_ADVICE}", file=sys.stderr)
    if not certificate.connected or (found is not None and not found.met):
        raise typer.Exit(1)


def _pruned(
    source: Source, target: Target, settings: dict[str, Any], task: str, batch: int
) -> tuple[Masks, Found | None]:
    density = simple_density(target, source.model, settings["select"], settings["protect"])
    with told_how_far() as milestones:
        if density is not None:
            return prune_model(source.model, source.example, density=density, progress=progress(), **settings), None
        return _searched(source, target, settings, task, batch, milestones)


def _searched(
    source: Source, target: Target, settings: dict[str, Any], task: str, batch: int, milestones: Milestones
) -> tuple[Masks, Found]:
    def tell(text: str) -> None:
        milestones.last = f"after {text}"
        if progress():
            print(text, file=sys.stderr)

    stride = walk(source.model, source.example, settings, progress())
    if target.flops is not None:
        found = find_flops(target.flops, source.model, source.example, stride, tell)
    else:
        assert target.speedup is not None
        found = find_speedup(target.speedup, source.model, source.example, stride, tell, task=task, batch=batch)
    return found.masks, found


def _found(found: Found) -> dict[str, Any]:
    return {
        "compression": found.compression, "reached": found.reached.value, "low": found.reached.low,
        "high": found.reached.high, "met": found.met,
    }  # fmt: skip


def _tell(found: Found, target: Target, task: str, batch: int) -> None:
    if target.flops is not None:
        text = f"the compact network needs {percent(found.reached.value)} of the operations (counted, so exact)"
    else:
        text = (
            f"{task} at batch {batch} is {found.reached.value:.2f} times faster (quartiles {found.reached.low:.2f} to "
            f"{found.reached.high:.2f}, measured on this machine)"
        )
    missed = "" if found.met else "; the target was not reached: higher compression did not help"
    say_wrapped(f"{text}, at {times(found.compression)} compression{missed}", 0)
