"""Prune every architecture of the zoo to 100x by a score, read it at 10x on the way, and write `docs/zoo.md`.

Rows are kept in `runs/zoo.jsonl` as they are done; `--resume` goes on from there. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from tqdm import tqdm
from zoo_models import ENTRIES, Entry

import synflow

COMPRESSIONS = (10, 100)
SCORES = ("synflow", "balanced")


@dataclass
class Row:
    """What came of one architecture under a score; `error` is empty where all went well.

    `dead` is how many layers have no weight on a path at each compression (None: not looked at), of those that the
    forward pass reaches. `code` is the commit that it was measured with, and a plus if the sources differed from it.
    """

    name: str
    score: str = "synflow"
    weights: int = 0
    layers: int = 0
    kept: tuple[int, ...] = ()
    exact: bool = False
    connected: bool = False
    dead: tuple[int | None, ...] = ()
    residual: float = 0.0
    seconds: float = 0.0
    error: str = ""
    code: str = ""


def code_state() -> str:
    """The commit of the sources that are measured, with a plus if they were changed since."""
    here = Path(__file__).parents[1]
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=here, capture_output=True, text=True)
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src"], cwd=here, capture_output=True)
    return commit.stdout.strip() + "+" * (changed.returncode == 1)


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


def examine(name: str, build: Entry, steps: int, limit: int = 600, score: str = "balanced") -> Row:
    """Prune one architecture and certify it at each compression."""
    start = time.process_time()
    row = Row(name, score, code=code_state())
    try:
        with time_limit(limit):
            _fill(row, build, steps)
    # Whatever stops one architecture is a finding for the table, not a reason to stop the others.
    except (Exception, OutOfTime) as error:
        row.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    row.seconds = time.process_time() - start
    return row


def _fill(row: Row, build: Entry, steps: int) -> None:
    """One run of an even number of exponential steps: half of them lead to 10x, all of them to 100x."""
    torch.manual_seed(0)
    model, example = build()
    model.eval()
    row.kept = row.dead = ()
    for step in synflow.iterate(model, example, compression=COMPRESSIONS[-1], score=row.score, steps=steps):
        if step.index in (steps // 2, steps):
            certificate = synflow.certify(model, step.masks, example)
            row.kept += (certificate.kept,)
            row.dead += (len(certificate.dead_layers),)
    row.weights, row.layers = certificate.total, len(certificate.layers) - len(certificate.never_run)
    row.exact = row.kept == tuple(round(row.weights / compression) for compression in COMPRESSIONS)
    row.connected = certificate.connected
    row.residual = max(certificate.unit_residual or 0.0, certificate.layer_residual or 0.0)


Rows = dict[tuple[str, str], Row]


def table(rows: Rows, steps: int) -> str:
    """The page: a summary, a table per family, and the failures with their reasons."""
    lines = [
        "# Architectures",
        "",
        f'`score="synflow"` and `score="balanced"` at 10x and 100x over {len({name for name, _ in rows})} '
        f"architectures, built without pretrained weights, one example each: {steps} exponential steps to 100x, read "
        "at 10x on the way, with the default guard of each score. A dash: not measured. Written by `make zoo`.",
        "",
        *_states(rows),
        *(_summary(rows, score) for score in SCORES),
        "",
        "- *keeps*: weights left; exact means the number of weights divided by the compression, rounded.",
        "- *connected*: an input still reaches an output at 100x, under each score that was run.",
        "- *dead*: layers without a weight on a path at 10x / 100x, of those that the forward pass reaches. Under "
        "`synflow` the network stays connected by a skip connection, but the layer is lost. `balanced` keeps layers "
        "alive ([why](why.md#theorem-3-on-any-graph)).",
        "- *residual*: how far conservation is off at 100x, over all units and cuts, as a share of the flow "
        "(float32 holds about 1e-6).",
        "- *seconds*: processor time of building, pruning and certifying, SynFlow / balanced.",
        "- timm models see images of 64 pixels where they can; transformers models have small configurations.",
    ]
    for family, entries in ENTRIES.items():
        found = [cells for name in entries if (cells := _cells(rows, name))]
        if found:
            lines += [
                "",
                f"## {family}",
                "",
                "| architecture | layers | weights | 10x keeps | 100x keeps | connected | dead, synflow "
                "| dead, balanced | residual | seconds |",
                "|---|--:|--:|--:|--:|---|--:|--:|--:|--:|",
                *found,
            ]
    failed = [row for row in rows.values() if row.error]
    if failed:
        lines += ["", "## Failures", "", "| architecture | score | reason |", "|---|---|---|"]
        lines += [f"| {row.name} | {row.score} | {row.error.replace('|', '/')} |" for row in failed]
    return "\n".join(lines) + "\n"


def _states(rows: Rows) -> list[str]:
    """Which states of the code the rows were measured with; rows of before states were noted have an asterisk."""
    states = Counter(row.code for row in rows.values() if row.code)
    text = "Measured with the code of these commits: " + ", ".join(
        f"{state} ({number} results)" for state, number in states.most_common()
    )
    old = sum(not row.code for row in rows.values())
    if old:
        text += (
            f". An asterisk marks the other {old} results, which are of older states of the code; there SynFlow took "
            "10 steps to 10x and 10 more to 100x, nothing was counted at 10x, and at 100x layers without any weight"
        )
    return [text + ".", ""]


def _summary(rows: Rows, score: str) -> str:
    tried = [row for row in rows.values() if row.score == score]
    done = [row for row in tried if not row.error]
    dead = []
    for place, compression in enumerate(COMPRESSIONS):
        known = [(row.dead[place], row.layers) for row in done if row.dead[place] is not None]
        if known:
            dead.append(f"{sum(d or 0 for d, _ in known):,} of {sum(n for _, n in known):,} layers at {compression}x")
    return (
        f"- **`{score}`: {len(done)} of {len(tried)} architectures pruned** · exact count in "
        f"{sum(row.exact for row in done)} · connected {sum(row.connected for row in done)} · largest conservation "
        f"residual {max((row.residual for row in done), default=0.0):.1e} · dead: {', '.join(dead)}"
    )


def _cells(rows: Rows, name: str) -> str:
    """The line of one architecture, from the runs that went well."""
    found = {score: row for score in SCORES if (row := rows.get((name, score))) is not None and not row.error}
    if not found:
        return ""
    row = found.get("synflow") or found["balanced"]
    exact, connected = all(r.exact for r in found.values()), all(r.connected for r in found.values())
    kept = [f"{count:,}" if exact else f"{count:,} (!)" for count in row.kept]
    dead = [" / ".join(map(_or_dash, found[s].dead)) + "*" * (not found[s].code) if s in found else "–" for s in SCORES]
    seconds = " / ".join(f"{found[s].seconds:.1f}" if s in found else "–" for s in SCORES)
    residual = max(r.residual for r in found.values())
    cells = [name, str(row.layers), f"{row.weights:,}", *kept, "yes" if connected else "**no**", *dead]
    return "| " + " | ".join([*cells, f"{residual:.1e}", seconds]) + " |"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("docs/zoo.md"), help="the page to write (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=10, help="pruning steps, an even number (default: %(default)s)")
    parser.add_argument("--score", choices=SCORES, default="balanced", help="the score (default: %(default)s)")
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help="architectures or families")
    parser.add_argument("--limit", type=int, default=600, help="seconds for one architecture (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="keep the rows of an earlier run that went well")
    parser.add_argument("--log", type=Path, default=Path("runs/zoo.jsonl"), help="rows as they are done")
    options = parser.parse_args(arguments)

    rows: Rows = {}
    if options.resume and options.log.exists():
        for logged in map(json.loads, options.log.read_text().splitlines()):
            row = Row(**{**logged, "kept": tuple(logged["kept"]), "dead": tuple(logged["dead"])})
            if not row.error or row.score != options.score:
                rows[row.name, row.score] = row
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
            bar := tqdm({n: b for n, b in wanted.items() if (n, options.score) not in rows}.items(), unit="net")
        ):
            bar.set_description(name)
            row = rows[name, options.score] = examine(name, build, options.steps, options.limit, options.score)
            if row.error:
                bar.write(f"{name}: {row.error}", file=sys.stderr)
            log.write(json.dumps(asdict(row)) + "\n")
            log.flush()
            options.out.write_text(table(rows, options.steps))
    options.out.write_text(table(rows, options.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
