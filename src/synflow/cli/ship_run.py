"""The work of `synflow compact`, `bench` and `export`: from masks to a smaller, faster network in a file."""

from __future__ import annotations

import dataclasses
import json as json_module
import warnings
from pathlib import Path
from typing import Any

import torch

from ..benchmarking.results import Benchmark
from ..benchmarking.run import bench as bench_model
from ..compaction import compact as compact_model
from ..compaction import load_compact, save_compact
from ..compaction.files import FILES
from ..compaction.result import compaction_of
from ..errors import SynflowError
from ..inference.onnx import export_onnx
from ..masks.attach import attach
from ..models.sources import Source
from ..reporting.facts import plain_benchmark, plain_compaction
from ..support.folders import check_writable, is_free, refuse_foreign
from ..support.numbers import bytes_text, seconds_text
from .bench_options import Timed
from .interrupts import told_how_far
from .output import print_json, progress, say, say_wrapped, table, watched
from .run_files import BENCH, OURS
from .runs import COMPACT, Run, next_command, open_run, rebuild, refresh_report, replace_text

ONNX = "model.onnx"


def run_compact(folder: Path, model: str | None, force: bool, json: bool) -> None:
    """Write the compact network into the folder, and its figures into the report."""
    run = open_run(folder)
    to = folder / COMPACT
    if not is_free(to) and not force:
        raise SynflowError(f"{to} is there already; replace it with --force")
    check_writable(to)
    source = rebuild(run, model)
    with watched("compacting, and comparing outputs"):
        small = compact_model(source.model, source.example, run.masks())
    save_compact(small, to)
    compaction = compaction_of(small)
    facts = run.facts()
    removed = compaction.removed
    layers = tuple(
        dataclasses.replace(row, compact_units=removed[row.name][0][1] if row.name in removed else row.units)
        for row in facts.layers
    )
    refresh_report(run, dataclasses.replace(facts, layers=layers, compaction=plain_compaction(compaction)))
    if json:
        print_json({"out": str(to), **plain_compaction(compaction)})
        return
    say_wrapped(str(compaction), 4)
    say(f"\nwritten to {to}; in Python: synflow.load_compact(model, {str(to)!r})")
    say(next_command("bench", folder, source.spec))


def run_bench(folder: Path, model: str | None, timed: Timed, json: bool) -> None:
    """Time the networks, and put the figures into the report."""
    run = open_run(folder)
    refuse_foreign(folder, (BENCH,), OURS)
    check_writable(folder)
    source = rebuild(run, model)
    with told_how_far():
        result = bench_model(
            source.model, run.masks(), source.example, train_batches=timed.train_batch or (128,),
            inference_batches=timed.batch or (1, 64), repeats=timed.repeats, threads=timed.threads, onnx=timed.onnx,
            openvino=timed.openvino, folded=timed.folded, forms=timed.forms, channels_last=timed.channels_last,
            small=_stored(run, source), progress=progress(),
        )  # fmt: skip
    replace_text(folder / BENCH, result.to_json() + "\n")
    refresh_report(run, dataclasses.replace(run.facts(), benchmark=plain_benchmark(result)))
    if json:
        print_json(json_module.loads(result.to_json()))
    else:
        show(result)
        say(f"\nwritten to {folder / BENCH}, and into {folder / 'report.html'}")


def run_export(
    folder: Path, onnx: bool, out: Path | None, masked: bool, fixed_batch: bool, model: str | None, force: bool,
    json: bool,
) -> None:  # fmt: skip
    """Write an ONNX file after comparing its outputs."""
    if not onnx:
        raise SynflowError("name the format: --onnx (the only one there is)")
    run = open_run(folder)
    to = out or folder / ONNX
    if to.exists() and not force:
        raise SynflowError(f"{to} is there already; choose another --out, or replace it: --force")
    source = rebuild(run, model)
    network: Any
    if masked:
        network = attach(source.model, run.masks())
    else:
        network = _stored(run, source) or compact_model(source.model, source.example, run.masks())
    with warnings.catch_warnings(), watched("exporting, and running the file in onnxruntime"):
        warnings.simplefilter("ignore")  # torch's exporter warns of its own future
        export_onnx(network, source.example, to, dynamic_batch=not fixed_batch)
    size = to.stat().st_size
    if json:
        print_json({"out": str(to), "bytes": size, "masked": masked})
    else:
        say(f"written to {to}: {bytes_text(size)}, outputs equal in onnxruntime")


def show(result: Benchmark) -> None:
    """Print the figures of a benchmark at 80 columns."""
    table(
        ["task", ("batch", "right"), "variant", ("median", "right"), ("quartiles", "right"), ("faster", "right")],
        [
            [*((t.task.split()[0], f"{t.batch}") if t.variant == "dense" else ("", "")), t.variant,
             seconds_text(t.seconds), f"{seconds_text(t.low)} - {seconds_text(t.high)}", f"{t.ratio:.2f}x"]
            for t in result.timings
        ],
    )  # fmt: skip
    say_wrapped("(training: a whole step; faster: median of the dense network by that of the variant)", 1)
    say()
    peaks = {task: "peak, " + task.split()[0] for task in result.peaks}
    table(
        ["variant", *((head, "right") for head in ("parameters", "MFLOP", "file", *peaks.values()))],
        [
            [s.variant, f"{s.parameters:,}", f"{s.flops / 1e6:,.2f}", bytes_text(s.file_bytes),
             *(bytes_text(result.peaks[task][s.variant]) for task in peaks)]
            for s in result.sizes
        ],
    )  # fmt: skip
    say()
    say_wrapped(", ".join(f"{key} {value}" for key, value in result.settings.items()), 2)


def _stored(run: Run, source: Source) -> torch.nn.Module | None:
    folder = run.folder / COMPACT
    return load_compact(source.model, folder) if (folder / FILES[0]).is_file() else None
