"""The work of `synflow prune`: build the model, prune it to the target, certify, write, print."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import typer

from ..certificates.certificate import Certificate, certify
from ..errors import named
from ..masks.results import Masks
from ..models.own_files import is_file, name_or_function
from ..models.sources import Source, load_model
from ..pruning.loop import prune as prune_model
from ..reporting.facts import Facts, gather
from ..support.numbers import percent, times
from . import options
from .interrupts import Milestones, told_how_far
from .output import command_line, layer_table, print_json, progress, say, say_wrapped, watched
from .prune_data import scoring_data
from .prune_options import Wish
from .prune_search import Found, find_flops, find_speedup, walk
from .prune_target import simple_density
from .runs import check_free, next_command, write_run

TASKS = {"inference": "inference", "training": "training step"}
_ADVICE = "no path is left, so training cannot help; lower the compression, or use --score synflow with its guard"


def run_prune(wish: Wish, out: Path | None, force: bool, json: bool) -> None:
    """Prune, write to `out` if given, print; the exit code is 1 if the result misses the target."""
    _check_names(wish)
    if out is not None:
        check_free(out, force)
    if wish.threads is not None:
        torch.set_num_threads(wish.threads)
    source, settings = _prepared(wish)
    start = time.perf_counter()
    masks, found = _pruned(source, wish, settings)
    seconds = time.perf_counter() - start
    with watched("certificate and report"):
        certificate = certify(source.model, masks, source.example)
        facts = gather(
            source.model, masks, source.example, title=wish.model, certificate=certificate, command=command_line(),
            benchmark=found.reached.benchmark if found else None,
        )  # fmt: skip
        if out is not None:
            write_run(out, source, masks, certificate, facts, command_line())
    if json:
        print_json({
            "model": wish.model, "out": None if out is None else str(out), "seconds": seconds, "pruning": masks.about,
            "target": None if found is None else _figures(found), "certificate": certificate.as_dict(),
            "layers": facts.as_dict()["layers"],
        })  # fmt: skip
    else:
        _tell(wish, certificate, facts, found, out, seconds)
    if not certificate.connected:
        print(f"not connected: {_ADVICE}", file=sys.stderr)
    if not certificate.connected or (found is not None and not found.met):
        raise typer.Exit(1)


def _check_names(wish: Wish) -> None:
    """Refuse unknown names before anything is built."""
    for kind in ("score", "schedule"):
        if not is_file(getattr(wish.method, kind)):
            named(kind, getattr(wish.method, kind), options.names_of(kind), ", or file.py:function")
    named("scope", wish.method.scope, options.names_of("scope"))
    named("task", wish.timing.task, TASKS)
    if wish.data.data is not None:
        named("data set", wish.data.data, options.names_of("data set"))


def _prepared(wish: Wish) -> tuple[Source, dict[str, Any]]:
    """The model and the arguments of `prune`; a data set determines the model's inputs and classes."""
    method, origin = wish.method, wish.origin
    batches = scoring_data(wish.data, method.score, origin.seed)
    source = load_model(
        wish.model, inputs=origin.input or batches.inputs, classes=origin.classes or batches.classes, seed=origin.seed,
        weights=origin.weights, device=wish.device,
    )  # fmt: skip
    chosen = {**vars(method), "select": method.select or None, "protect": method.protect or ()}
    chosen |= {kind: name_or_function(chosen[kind]) for kind in ("score", "schedule")}
    return source, {**chosen, "seed": origin.seed, "data": batches.batches}


def _pruned(source: Source, wish: Wish, settings: dict[str, Any]) -> tuple[Masks, Found | None]:
    density = simple_density(wish.target, source.model, settings["select"], settings["protect"])
    with told_how_far() as milestones:
        if density is not None:
            return prune_model(source.model, source.example, density=density, progress=progress(), **settings), None
        found = _searched(source, wish, settings, milestones)
        about = found.masks.about if found.met else {**found.masks.about, "target not reached": found.problem}
        return Masks(found.masks, about, found.masks.steps), found


def _searched(source: Source, wish: Wish, settings: dict[str, Any], milestones: Milestones) -> Found:
    def tell(text: str) -> None:
        milestones.last = f"after {text}"
        if progress():
            print(text, file=sys.stderr)

    target, timing = wish.target, wish.timing
    stride = walk(source.model, source.example, settings, progress())
    if target.flops is not None:
        return find_flops(target.flops, source.model, source.example, stride, tell)
    assert target.speedup is not None
    return find_speedup(
        target.speedup, source.model, source.example, stride, tell, task=TASKS[timing.task], batch=timing.batch
    )


def _figures(found: Found) -> dict[str, Any]:
    return {
        "compression": found.compression, "reached": found.reached.value, "low": found.reached.low,
        "high": found.reached.high, "met": found.met, "problem": found.problem,
    }  # fmt: skip


def _tell(
    wish: Wish, certificate: Certificate, facts: Facts, found: Found | None, out: Path | None, seconds: float
) -> None:
    say(f"{wish.model} at {times(certificate.compression)} by {wish.method.score}, pruned in {seconds:.1f} s\n")
    say_wrapped(str(certificate), 16)
    say()
    layer_table(facts.layers)
    say()
    if found is not None:
        _tell_target(found, wish)
    if out is None:
        say("nothing was written; --out DIR keeps weights, masks, certificate and report")
    else:
        say(f"written to {out}: weights, masks, certificate; open {out / 'report.html'}")
        say(next_command("compact", out, wish.model))


def _tell_target(found: Found, wish: Wish) -> None:
    if wish.target.flops is not None:
        text = f"the compact network needs {percent(found.reached.value)} of the operations (counted, so exact)"
    else:
        text = (
            f"{wish.timing.task} at batch {wish.timing.batch} is {found.reached.value:.2f} times faster (quartiles "
            f"{found.reached.low:.2f} to {found.reached.high:.2f}, measured on this machine)"
        )
    missed = "" if found.met else f"; the target was not reached: {found.problem}"
    say_wrapped(f"{text}, at {times(found.compression)} compression{missed}", 0)
