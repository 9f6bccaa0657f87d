"""`synflow demo`: five methods, several compressions, real digits; ends in a table and a report."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..errors import SynflowError
from ..reporting.facts import gather, versions
from ..reporting.figures import curve_image, figure
from ..reporting.page import Cell, comparison_page, plots, section, table_of
from . import options
from .demo_runs import METHODS, Outcome, Setting, Variant, compare_variants, outcomes, prepare
from .output import print_json, progress, say, table
from .runs import json_text, replace_text
from .stopping import told_how_far

RESULTS, REPORT = "results.json", "report.html"
CAPTION = (
    "Test accuracy after training at each compression. The other methods lose all accuracy when a layer is pruned away "
    "whole (10% is guessing); SynFlow keeps a path from inputs to outputs, and degrades without a cliff."
)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the report and the figures.")] = Path(
        "synflow-demo"
    ),
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Epochs of each training run.")] = 6,
    compression: Annotated[
        list[float] | None,
        typer.Option(metavar="X", help="Compressions to try; repeatable.", show_default="10 30 100 300 1000 3000"),
    ] = None,
    width: Annotated[int, typer.Option(metavar="N", min=4, help="Channels of the first layers.")] = 64,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """See it work in three minutes, offline: five methods prune and train a network on real digits.

    Trains the network dense, masked and compact as well; ends with a table and an HTML report.
    """
    _check_free(out, force)
    if threads is not None:
        torch.set_num_threads(threads)
    start = time.perf_counter()
    setting = prepare(width, epochs, seed)
    wanted = sorted(set(compression or (10, 30, 100, 300, 1000, 3000)))
    if min(wanted) < 1:
        raise SynflowError(f"--compression is at least 1, got {min(wanted):g}")
    watch = _Watch(len(METHODS) * len(wanted) + 3, quiet=json)
    middle = min(wanted, key=lambda value: abs(value - 100))
    variants: list[Variant] = []
    found: list[Outcome] = []
    with told_how_far() as milestones:
        for variant in compare_variants(setting, middle):
            variants.append(variant)
            watch.done(f"{variant.name:<22} {variant.accuracy:5.1f}%  {variant.steps_per_second:6.1f} steps/s")
            milestones.last = f"after {watch.count} of {watch.total} runs"
        for outcome in outcomes(setting, wanted):
            found.append(outcome)
            said = f"{outcome.accuracy:5.1f}%" + ("" if outcome.connected else "  collapsed: no path is left")
            watch.done(f"{outcome.method:<10} {outcome.compression:>6,.0f}x    {said}")
            milestones.last = f"after {watch.count} of {watch.total} runs"
    watch.close()
    seconds = time.perf_counter() - start
    _write(out, setting, found, variants, middle, seconds)
    if json:
        print_json(_figures(found, variants, seconds))
    else:
        _tell(found, variants, wanted, middle, seconds, out)


def _check_free(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise SynflowError(f"{out} is there already and is no folder; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (force and (out / RESULTS).is_file()):
        raise SynflowError(f"{out} is there already and is not empty; choose another --out, or replace a demo: --force")


class _Watch:
    """Tells on standard error what is done and how long the rest will take."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.count, self.quiet, self.start = total, 0, quiet, time.monotonic()

    def done(self, text: str) -> None:
        """One more run is finished."""
        self.count += 1
        if self.quiet:
            return
        passed = time.monotonic() - self.start
        left = passed / self.count * (self.total - self.count)
        live = progress()
        print(f"\r{text:<60}" if live else text, file=sys.stderr, flush=True)
        if live and self.count < self.total:
            filled = 30 * self.count // self.total
            line = f"{'━' * filled}{'─' * (30 - filled)} {self.count}/{self.total}, about {left:.0f} s left"
            print(line, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the line."""
        if not self.quiet:
            print(file=sys.stderr)


def _write(
    out: Path, setting: Setting, found: Sequence[Outcome], variants: Sequence[Variant], middle: float, seconds: float
) -> None:
    chosen = [outcome for outcome in found if outcome.compression == middle]
    command = shlex.join(["synflow", *sys.argv[1:]])
    facts = {
        outcome.method: gather(
            setting.model, outcome.masks, setting.example, title="the demo's network", command=command
        )
        for outcome in chosen
    }
    dense = variants[0].accuracy
    curves = {
        method: [(o.compression, o.accuracy) for o in found if o.method == method] for method in METHODS
    }  # fmt: skip
    picture = figure(curve_image("Accuracy against compression", curves, {"dense": dense}), CAPTION)
    extra = [
        section("When does a network collapse?", plots([picture])),
        section("Accuracy", _accuracy_html(curves)),
        section(f"Dense, masked, compact (SynFlow, {middle:g}x)", _variants_html(variants)),
    ]
    html = comparison_page(
        facts, {outcome.method: outcome.masks for outcome in chosen}, title="synflow demo",
        sub=f"Five methods on 1,797 handwritten digits, in {seconds:.0f} s", extra=extra,
    )  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise SynflowError(f"{out} cannot be made: {cause}") from cause
    replace_text(out / RESULTS, json_text(_figures(found, variants, seconds)))
    replace_text(out / REPORT, html)


def _figures(found: Sequence[Outcome], variants: Sequence[Variant], seconds: float) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "outcomes": [
            {"method": o.method, "compression": o.compression, "accuracy": o.accuracy, "connected": o.connected}
            for o in found
        ],
        "variants": [vars(variant) for variant in variants],
        "versions": versions(),
    }


def _accuracy_html(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    heads = ["method", *(f"{compression:g}x" for compression, _ in next(iter(curves.values())))]
    rows: list[list[Cell]] = [
        [(method, method), *((f"{accuracy:.1f}%", accuracy) for _, accuracy in curve)]
        for method, curve in curves.items()
    ]
    return table_of("Accuracy of each method", heads, rows)


def _variants_html(variants: Sequence[Variant]) -> str:
    rows: list[list[Cell]] = [
        [
            (v.name, v.name), (f"{v.accuracy:.1f}%", v.accuracy), (f"{v.weights:,}", v.weights),
            (f"{v.parameters:,}", v.parameters), (f"{v.steps_per_second:.1f}", v.steps_per_second),
        ]
        for v in variants
    ]  # fmt: skip
    return table_of("Variants", ["network", "accuracy", "weights", "parameters in memory", "steps per second"], rows)


def _tell(
    found: Sequence[Outcome], variants: Sequence[Variant], wanted: Sequence[float], middle: float, seconds: float,
    out: Path,
) -> None:  # fmt: skip
    say("test accuracy by compression (x: collapsed, no path is left)\n")
    by = {(o.method, o.compression): o for o in found}
    table(
        ["method", *((f"{value:g}x", "right") for value in wanted)],
        [
            [method, *(_entry(by[method, value]) for value in wanted)]
            for method in METHODS
        ],
    )  # fmt: skip
    say(f"\nthe same training dense, masked and compact (SynFlow at {middle:g}x)\n")
    table(
        ["network", *((head, "right") for head in ("accuracy", "weights", "parameters", "steps/s", "faster"))],
        [
            [v.name, f"{v.accuracy:.1f}%", f"{v.weights:,}", f"{v.parameters:,}", f"{v.steps_per_second:.1f}",
             f"{v.steps_per_second / variants[0].steps_per_second:.1f}x"]
            for v in variants
        ],
    )  # fmt: skip
    say(f"\n{seconds:.0f} s in all; open {out / REPORT}")


def _entry(outcome: Outcome) -> str:
    return f"{outcome.accuracy:.1f}%" if outcome.connected else "x"
