"""Prune every architecture of the zoo at 10x and 100x, certify it, and write the table `docs/zoo.md`.

Rows are kept in `runs/zoo.jsonl` as they are done; `--resume` goes on from there. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from torch import nn
from tqdm import tqdm
from zoo_models import ENTRIES, Entry

import synflow

COMPRESSIONS = (10, 100)


@dataclass
class Row:
    """What came of one architecture; `error` is empty where all went well."""

    name: str
    weights: int = 0
    layers: int = 0
    kept: tuple[int, ...] = ()
    exact: bool = False
    connected: bool = False
    empty_layers: int = 0
    residual: float = 0.0
    seconds: float = 0.0
    error: str = ""


class OutOfTime(BaseException):
    """Not an Exception, so that no code on the way takes it for an error of its own."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Stop what takes more processor time with OutOfTime (where the system has timers, and in the main thread)."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"not done within {seconds} seconds of processor time")

    if not hasattr(signal, "SIGPROF"):
        yield
        return
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # A signal that is still on its way to some thread must not end the process, as it does by default.
        signal.signal(signal.SIGPROF, signal.SIG_IGN if before is signal.SIG_DFL else before)


def examine(name: str, build: Entry, steps: int, limit: int = 600) -> Row:
    """Prune one architecture at each compression and certify the last masks."""
    start = time.process_time()
    row = Row(name)
    try:
        with time_limit(limit):
            _fill(row, build, steps)
    # Whatever stops one architecture is a finding for the table, not a reason to stop the others.
    except (Exception, OutOfTime) as error:
        row.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    row.seconds = time.process_time() - start
    return row


def _fill(row: Row, build: Entry, steps: int) -> None:
    torch.manual_seed(0)
    model, example = build()
    model.eval()
    certificate = prune_both(row, model, example, steps)
    row.weights, row.layers = certificate.total, len(certificate.layers)
    row.exact = row.kept == tuple(round(row.weights / compression) for compression in COMPRESSIONS)
    row.connected, row.empty_layers = certificate.connected, len(certificate.empty_layers)
    row.residual = max(certificate.unit_residual or 0.0, certificate.layer_residual or 0.0)


def prune_both(row: Row, model: nn.Module, example: Any, steps: int) -> synflow.Certificate:
    """Prune at each compression, the larger going on from the smaller, and certify the last masks."""
    masks, row.kept = None, ()
    for compression in COMPRESSIONS:
        masks = synflow.prune(model, example, compression=compression, steps=steps, masks=masks)
        row.kept += (sum(int(mask.sum()) for mask in masks.values()),)
    assert masks is not None
    return synflow.certify(model, masks, example)


def table(rows: dict[str, Row], steps: int) -> str:
    """The page: a summary, a table per family, and the failures with their reasons."""
    done = [row for row in rows.values() if not row.error]
    failed = [row for row in rows.values() if row.error]
    lines = [
        "# Architectures",
        "",
        f'`score="synflow"` at 10x and 100x over {len(rows)} architectures, built without pretrained '
        f"weights, one example each, with the defaults but for {steps} exponential steps each, the second going on "
        "from the first. Written by `make zoo`.",
        "",
        f"**{len(done)} of {len(rows)} pruned** · exact count in {sum(row.exact for row in done)} · "
        f"connected {sum(row.connected for row in done)} · largest conservation residual "
        f"{max((row.residual for row in done), default=0.0):.1e} · empty at 100x: "
        f"{sum(row.empty_layers for row in done):,} of {sum(row.layers for row in done):,} layers",
        "",
        "- *keeps*: weights left; exact means the number of weights divided by the compression, rounded.",
        "- *connected*: an input still reaches an output at 100x. *Empty*: layers without a weight at 100x. The "
        'network stays connected by a skip connection, but the layer is lost; `score="balanced"` keeps layers alive '
        "([why](why.md#theorem-3-on-any-graph)).",
        "- *residual*: how far conservation is off at 100x, over all units and cuts, as a share of the flow "
        "(float32 holds about 1e-6).",
        "- *seconds*: processor time of building, pruning and certifying.",
        "- timm models see images of 64 pixels where they can; transformers models have small configurations.",
    ]
    for family, entries in ENTRIES.items():
        found = [rows[name] for name in entries if name in rows and not rows[name].error]
        if found:
            lines += [
                "",
                f"## {family}",
                "",
                "| architecture | layers | weights | 10x keeps | 100x keeps | connected | empty | residual | seconds |",
                "|---|--:|--:|--:|--:|---|--:|--:|--:|",
                *(_cells(row) for row in found),
            ]
    if failed:
        lines += ["", "## Failures", "", "| architecture | reason |", "|---|---|"]
        lines += [f"| {row.name} | {row.error.replace('|', '/')} |" for row in failed]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> str:
    kept = [f"{count:,}" if row.exact else f"{count:,} (!)" for count in row.kept]
    cells = [row.name, str(row.layers), f"{row.weights:,}", *kept, "yes" if row.connected else "**no**"]
    return "| " + " | ".join([*cells, str(row.empty_layers), f"{row.residual:.1e}", f"{row.seconds:.1f}"]) + " |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("docs/zoo.md"), help="the page to write (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=10, help="pruning steps (default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help="architectures or families")
    parser.add_argument("--limit", type=int, default=600, help="seconds for one architecture (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="keep the rows of an earlier run that went well")
    parser.add_argument("--log", type=Path, default=Path("runs/zoo.jsonl"), help="rows as they are done")
    options = parser.parse_args(arguments)

    rows: dict[str, Row] = {}
    if options.resume and options.log.exists():
        logged = [json.loads(line) for line in options.log.read_text().splitlines()]
        rows = {row["name"]: Row(**{**row, "kept": tuple(row["kept"])}) for row in logged if not row["error"]}
    wanted = {
        name: build
        for family, entries in ENTRIES.items()
        for name, build in entries.items()
        if any(fnmatchcase(name, pattern) or fnmatchcase(family, pattern) for pattern in options.only)
    }
    options.log.parent.mkdir(parents=True, exist_ok=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.log.open("a" if options.resume else "w") as log:
        for name, build in (
            bar := tqdm({name: b for name, b in wanted.items() if name not in rows}.items(), unit="net")
        ):
            bar.set_description(name)
            rows[name] = examine(name, build, options.steps, options.limit)
            if rows[name].error:
                bar.write(f"{name}: {rows[name].error}", file=sys.stderr)
            log.write(json.dumps(asdict(rows[name])) + "\n")
            log.flush()
            options.out.write_text(table(rows, options.steps))
    options.out.write_text(table(rows, options.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
