"""Is pruning as fast, and as small in memory, as another version of the library? Two source trees, side by side.

    python benchmarks/versions.py BEFORE AFTER [--only PATTERN ...] [--rounds N] [--threads N] [--json FILE]

BEFORE and AFTER are checkouts of the repository (`git worktree add BEFORE v0.1`). Each run has a process of its own,
and the two versions take turns, so that whatever else the machine does hits both. Measured are the wall time and the
processor time of `prune`, and the most memory that it holds beyond the model. Ratios are after / before, of medians:
below one, AFTER is better. Only documented names of the library are used here, which both versions have.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FIGURES = ("wall", "cpu", "memory")


class GPT(nn.Module):
    """A transformer of the size of GPT-2 small: 12 layers, width 768, its 50257 outputs tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True)
        self.embedding = nn.Embedding(50257, 768)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.layers(self.embedding(tokens)), self.embedding.weight)


def built_in(name: str, classes: int, side: int) -> tuple[nn.Module, Tensor]:
    from synflow.experiments.models import build

    return build(name, classes=classes, input_shape=(3, side, side)), torch.ones(1, 3, side, side)


# name: network and example, compression, steps
CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor]], float, int]] = {
    "vgg16": (lambda: built_in("vgg16_bn", 100, 32), 100, 100),
    "resnet18": (lambda: built_in("resnet18", 200, 64), 100, 100),
    "resnet50-224": (lambda: built_in("resnet50", 1000, 224), 100, 100),
    "gpt2": (lambda: (GPT(), torch.zeros(1, 32, dtype=torch.long)), 10, 20),
}


def warm_up() -> None:
    """Prune two small networks: torch and the compiled loops take time and memory on first use."""
    import synflow

    layers = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
    images = nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 512, 3), nn.Conv2d(512, 16, 3))
    for model, example in ((layers, torch.ones(1, 1024)), (images, torch.ones(1, 3, 32, 32))):
        synflow.prune(model, example, compression=2, steps=5)


def examine(name: str, threads: int, steps: int | None) -> dict[str, Any]:
    """Prune one network once, in this process."""
    import synflow

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    warm_up()
    make, compression, usual = CASES[name]
    model, example = make()
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark so far is forgotten
    before, wall, cpu = status("VmRSS"), time.perf_counter(), time.process_time()
    masks = synflow.prune(model, example, compression=compression, steps=steps or usual)
    wall, cpu, memory = time.perf_counter() - wall, time.process_time() - cpu, status("VmHWM") - before
    kept = sum(int(mask.sum()) for mask in masks.values())
    return {"wall": wall, "cpu": cpu, "memory": memory / 2**20, "kept": kept, "where": synflow.__file__}


def status(field: str) -> int:
    """A figure of this process in bytes, as Linux tells it: VmRSS, the memory held now, or VmHWM, the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def run(tree: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run of a version in a fresh process."""
    source = (tree / "src").resolve()
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": str(options.threads)}
    command = [sys.executable, __file__, ".", ".", "--one", name, "--threads", str(options.threads)]
    command += ["--steps", str(options.steps)] if options.steps else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not Path(found["where"]).is_relative_to(source):
        raise SystemExit(f"{tree}: synflow was imported from {found['where']}, not from {source}")
    return found


def table(rows: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Medians and their ratios, a line per network; the last line has the geometric means of the ratios."""
    units = {"wall": "wall s", "cpu": "CPU s", "memory": "MB"}
    cells = [f"{units[figure]}: before | after | ratio" for figure in FIGURES]
    lines = [f"| network | runs | {' | '.join(cells)} |", "|---|" + "--:|" * (3 * len(FIGURES) + 1)]
    ratios: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    for name, row in rows.items():
        line = [name, str(len(row["after"]))]
        for figure in FIGURES:
            before, after = (statistics.median(one[figure] for one in row[key]) for key in ("before", "after"))
            ratios[figure].append(after / before)
            line += [f"{before:.1f}", f"{after:.1f}", f"{after / before:.2f}"]
        lines.append("| " + " | ".join(line) + " |")
    means = (math.exp(statistics.mean(map(math.log, ratios[figure]))) for figure in FIGURES)
    lines.append("| geometric mean | |" + "".join(f" | | **{mean:.2f}** |" for mean in means))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each version (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--steps", type=int, help="default: 100, for gpt2 20")
    parser.add_argument("--json", type=Path, help="where every single run is written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(examine(options.one, options.threads, options.steps)))
        return 0
    names = [name for name in CASES if any(fnmatchcase(name, pattern) for pattern in options.only)]
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {name: {"before": [], "after": []} for name in names}
    for tree in (options.before, options.after):
        run(tree, "vgg16", argparse.Namespace(threads=options.threads, steps=5))  # loops are compiled once per tree
    for index in range(options.rounds):
        for name in names:
            turns = [("before", options.before), ("after", options.after)]
            for key, tree in turns[:: 1 if index % 2 == 0 else -1]:
                rows[name][key].append(run(tree, name, options))
            print(f"{name}: {rows[name]['before'][-1]} {rows[name]['after'][-1]}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps({"threads": options.threads, "rows": rows}, indent=1))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
