"""What does each part of the fast engine bring? Pruning with one part switched off at a time, beside the whole engine.

    python benchmarks/ablation.py ROW [--rounds N] [--threads N] [--only PATTERN ...] [--json FILE]
    python benchmarks/ablation.py ROW --memory [...]
    python benchmarks/ablation.py --table FILE ...

A row is a network with a compression. For the time all variants take turns in one process, after a round that is not
counted; for the memory each has a process of its own. Ratios are off / on: above one, the part helps. A part stays if
it brings 10% of the time on the geometric mean of the rows, or 20% of the memory on one of them. `--table` joins what
was measured, row by row, into one table. Timings need a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from versions import CASES, status, warm_up

import synflow
from synflow.engine import candidate_passes, fast, products
from synflow.engine.factored_gradient import FactoredGradient
from synflow.engine.thresholds import Thresholds, using
from synflow.experiments.models import build
from synflow.pruning import gradients

NEVER = 1 << 60
ON = "complete engine"

Off = Callable[[], AbstractContextManager[Any]]


def changed(**thresholds: Any) -> Off:
    """A part that has an entry in the table of thresholds."""
    return lambda: using(Thresholds(**thresholds))


def replaced(owner: Any, name: str, value: Any) -> Off:
    """A part that has none."""
    return lambda: mock.patch.object(owner, name, value)


def unbounded(*given: Any, bounds: Callable[..., Any] = candidate_passes._bounds) -> Any:
    """Bounds that let every score be light, so that all are multiplied out."""
    found = bounds(*given)
    if found is not None:
        found[1].fill(0)
    return found


VARIANTS: dict[str, Off] = {
    ON: nullcontext,
    "recording and replay": changed(record_from_steps=NEVER),
    "folding positions": changed(fold_from_pixels=NEVER),
    "compiled loops": changed(compile_from_weights=NEVER),
    "bounded scores": replaced(candidate_passes, "_bounds", unbounded),
    "factored gradients": replaced(FactoredGradient, "is_thin", lambda *_: False),
    "small convolutions as products": changed(product_positions=0),
    "oneDNN products": replaced(products, "SMALL", NEVER),
}
# Parts that other rows show.
NORMS = {ON: nullcontext, "batch norm differentiated twice": replaced(gradients, "EconomicalNorms", nullcontext)}
HALF = {ON: nullcontext, "half-precision reading": replaced(fast, "reads_half", lambda *_: False)}


def pruned(case: str, compression: float, steps: int) -> Callable[[], Callable[[], Any]]:
    """A row of versions.py, at some compression."""

    def ready() -> Callable[[], Any]:
        model, example = CASES[case][0]()
        return lambda: synflow.prune(model, example, compression=compression, steps=steps)

    return ready


def scored(name: str) -> Callable[[], Any]:
    """GraSP of one batch."""
    model, example = build(name, classes=10), torch.ones(1, 3, 32, 32)
    data = [(torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))]
    return lambda: synflow.score(model, example, "grasp", data)


def halved() -> Callable[[], Any]:
    """A bfloat16 network of 38 million weights."""
    widths = [784, 4096, 4096, 4096, 10]
    layers = [nn.Linear(*pair).bfloat16() for pair in pairwise(widths)]
    model, example = nn.Sequential(*layers), torch.ones(1, 784, dtype=torch.bfloat16)
    return lambda: synflow.prune(model, example, compression=10, steps=12)


ROWS: dict[str, tuple[Callable[[], Callable[[], Any]], dict[str, Off]]] = {
    "vgg16-10x": (pruned("vgg16", 10, 100), VARIANTS),
    "vgg16-100x": (pruned("vgg16", 100, 100), VARIANTS),
    "vgg16-1000x": (pruned("vgg16", 1000, 100), VARIANTS),
    "resnet18": (pruned("resnet18", 100, 100), VARIANTS),
    "resnet50-224": (pruned("resnet50-224", 100, 100), VARIANTS),
    "gpt2": (pruned("gpt2", 10, 20), VARIANTS),
    "grasp-vgg16": (lambda: scored("vgg16_bn"), NORMS),
    "grasp-resnet20": (lambda: scored("resnet20"), NORMS),
    "half": (halved, HALF),
}


def examined(row: str, variant: str) -> dict[str, float]:
    """One run in this process: wall time, processor time, and the most memory held beyond the model."""
    ready, variants = ROWS[row]
    torch.manual_seed(0)
    run = ready()
    with variants[variant]():
        Path("/proc/self/clear_refs").write_text("5")  # the highest mark so far is forgotten
        before, wall, cpu = status("VmRSS"), time.perf_counter(), time.process_time()
        run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall, "cpu": cpu, "memory": (status("VmHWM") - before) / 2**20}


def apart(row: str, variant: str, threads: int) -> dict[str, float]:
    """The same in a process of its own, whose memory nothing else has used."""
    command = [sys.executable, __file__, row, "--one", variant, "--threads", str(threads)]
    found: dict[str, float] = json.loads(subprocess.check_output(command, text=True).splitlines()[-1])
    return found


def measured(row: str, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Every variant in turn, round by round."""
    names = [name for name in ROWS[row][1] if name == ON or any(fnmatchcase(name, p) for p in options.only)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    if not options.memory:
        warm_up()
        examined(row, ON)
    for _ in range(options.rounds):
        for name in names:
            one = apart(row, name, options.threads) if options.memory else examined(row, name)
            found[name].append(one)
            print(row, name, {key: round(value, 2) for key, value in one.items()}, file=sys.stderr, flush=True)
    return found


def table(files: list[Path]) -> str:
    """All rows that were measured, as ratios to the complete engine; the last column is their geometric mean."""
    kinds: dict[str, dict[str, dict[str, list[float]]]] = {"wall": {}, "cpu": {}, "memory": {}}
    for path in files:
        found = json.loads(path.read_text())
        for figure in ("memory",) if found["memory"] else ("wall", "cpu"):
            row = kinds[figure].setdefault(found["row"], {})
            for name, runs in found["runs"].items():
                row.setdefault(name, []).extend(run[figure] for run in runs)
    lines = []
    for figure, rows in kinds.items():
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        lines += [f"| {figure} | {' | '.join(rows)} | geometric mean |", "|---|" + "--:|" * (len(rows) + 1)]
        for name in names:
            ratios = {key: _ratio(row, name) for key, row in rows.items() if name in row}
            mean = math.exp(statistics.mean(map(math.log, ratios.values())))
            cells = [f"{ratios[key]:.2f}" if key in ratios else "" for key in rows]
            if name == ON:
                cells = [f"{statistics.median(row[ON]):.1f}" for row in rows.values()]
            lines.append(f"| {name} | {' | '.join(cells)} | {'' if name == ON else f'{mean:.2f}'} |")
        lines.append("")
    return "\n".join(lines)


def _ratio(row: dict[str, list[float]], name: str) -> float:
    return statistics.median(row[name]) / statistics.median(row[ON])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="?", choices=list(ROWS), metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help="parts that are switched off")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each variant (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--memory", action="store_true", help="each run in a process of its own")
    parser.add_argument("--json", type=Path, help="where every single run is written")
    parser.add_argument("--table", type=Path, nargs="*", metavar="FILE", help="join what was written into a table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.table:
        print(table(options.table))
    elif options.row is None:
        parser.error(f"name a row: {', '.join(ROWS)}")
    elif options.one:
        warm_up()
        print(json.dumps(examined(options.row, options.one)))
    else:
        runs = measured(options.row, options)
        if options.json:
            found = {"row": options.row, "threads": options.threads, "memory": options.memory, "runs": runs}
            options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
