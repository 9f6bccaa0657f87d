"""How fast is pruning, against the paper's algorithm written out plainly, step by step in one process?

    python benchmarks/pruning.py [--only PATTERN ...] [--threads N] [--json FILE]

The baseline is `synflow.pruning.plain_engine.algorithm_1`: forward and backward on dense tensors at each step, one
selection over all scores, dense masks. Half of its steps run before ours and half after, so that whatever else the
machine does hits both. Then each of our steps is compared with a plain one from the same masks: scores held, one
selection over all of them. Memory is that of fresh processes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import synflow
from synflow.models.built_in import build as build_model
from synflow.network.private_copy import open_network
from synflow.pruning.plain_engine import algorithm_1
from synflow.support.memory import give_back
from synflow.support.ranking import keep_best

STEPS = 100


class GPT(nn.Module):
    """A transformer of the size of GPT-2 small: 12 layers, width 768, its 50257 outputs tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True)
        self.embedding = nn.Embedding(50257, 768)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.layers(self.embedding(tokens)), self.embedding.weight)


def image(size: int) -> Tensor:
    return torch.ones(1, 3, size, size)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], float]] = {
    "vgg16:10": (lambda: build_model("vgg16_bn", classes=100), lambda: image(32), 10),
    "vgg16:100": (lambda: build_model("vgg16_bn", classes=100), lambda: image(32), 100),
    "vgg16:1000": (lambda: build_model("vgg16_bn", classes=100), lambda: image(32), 1000),
    "resnet18:100": (lambda: build_model("resnet18", classes=200, input_shape=(3, 64, 64)), lambda: image(64), 100),
    "vgg19-224:1000": (
        lambda: build_model("vgg19_bn", classes=1000, input_shape=(3, 224, 224)),
        lambda: image(224),
        1000,
    ),
    "resnet50-224:100": (
        lambda: build_model("resnet50", classes=1000, input_shape=(3, 224, 224)),
        lambda: image(224),
        100,
    ),
    "gpt2:10": (GPT, lambda: torch.zeros(1, 32, dtype=torch.long), 10),
}


def baseline(model: nn.Module, example: Tensor, compression: float, steps: int) -> Iterator[dict[str, Tensor]]:
    """Algorithm 1 of the paper, on dense tensors; masks after each step."""
    return algorithm_1(open_network(model, example), 1 / compression, steps)


def plainly(model: nn.Module, example: Tensor, masks: dict[str, Tensor], keep: int) -> tuple[dict[str, Tensor], Any]:
    """One step by held scores and one selection over all of them, on the whole network; and the scores."""
    scores = synflow.score(model, example, masks=masks)
    return keep_best(scores, masks, keep), scores


def compared(model: nn.Module, example: Tensor, compression: float, steps: int, every: int = 1) -> dict[str, Any]:
    """Our steps (or each n-th) against the plain path from the same masks, and the plain path left to itself.

    A weight that only one of them removes has to have a score next to the edge, or it is an error and not a tie:
    `farthest` is the largest distance from the edge, as a share of it.
    """
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in synflow.prunable(model).items()}
    alone, ties, removed, farthest = masks, 0, 0, 0.0
    for step in synflow.iterate(model, example, compression=compression, steps=steps):
        if (step.index - 1) % every:
            masks = step.masks
            continue
        wanted, scores = plainly(model, example, masks, step.kept)
        removed += sum(int((masks[name] & ~step.masks[name]).sum()) for name in masks)
        edge = min(float(scores[name][mask].min()) for name, mask in wanted.items() if bool(mask.any()))
        for name, mask in wanted.items():
            apart = scores[name][mask != step.masks[name]].double()
            ties += len(apart)
            farthest = max(farthest, float((apart / edge - 1).abs().max()) if len(apart) else 0.0)
        if every == 1:
            alone, _ = plainly(model, example, alone, step.kept)
        masks = step.masks
    differ = sum(int((alone[name] != masks[name]).sum()) for name in masks) // 2 if every == 1 else None
    return {"ties": ties // 2, "removed": removed, "farthest": farthest, "kept_differently": differ}


def warm_up() -> None:
    """Let both load and compile what they need once per process, on a network of two million weights."""
    model, example = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)), torch.ones(1, 1024)
    synflow.prune(model, example, compression=100, steps=10)
    for _ in baseline(model, example, 100, 10):
        pass


def clocked(model: nn.Module, example: Tensor, compression: float, every: int) -> dict[str, Any]:
    """Half of the baseline's steps, ours, the other half, so that both meet the same machine.

    Of the baseline only one step in `every`: its dense steps all cost the same.
    """
    timed = max(2, STEPS // every)
    theirs = baseline(model, example, compression, timed)
    spent = _seconds(lambda: [next(theirs) for _ in range(timed // 2)])
    mine = _seconds(lambda: synflow.prune(model, example, compression=compression, steps=STEPS))
    spent += _seconds(lambda: list(theirs))
    whole = spent / timed * STEPS
    return {
        "steps": STEPS, "baseline_seconds": whole, "baseline_steps_timed": timed, "seconds": mine, "ratio": whole / mine
    }  # fmt: skip


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def examine(name: str, parts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for of one row."""
    build, make_example, compression = CASES[name]
    torch.manual_seed(0)
    model, example = build(), make_example()
    weights = sum(weight.numel() for weight in synflow.prunable(model).values())
    row: dict[str, Any] = {"case": name, "weights": weights, "kept": round(weights / compression)}
    if "time" in parts:
        row |= clocked(model, example, compression, options.every)
    if "masks" in parts:
        row |= compared(model, example, compression, STEPS, options.check)
    if "memory" in parts:
        row["memory"] = {kind: peak(name, kind) / (4 * weights) for kind in ("ours", "baseline")}
    return row


def peak(name: str, kind: str) -> int:
    """Bytes that the first steps take beyond the model, in a process of their own."""
    command = [sys.executable, __file__, "--peak", f"{kind} {name}", "--threads", str(torch.get_num_threads())]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure_peak(kind: str, name: str) -> int:
    """Beyond the model: the most that a whole run of ours holds, or the first steps of the baseline."""
    build, make_example, compression = CASES[name]
    torch.manual_seed(0)
    _warm_up()
    model, example = build(), make_example()
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark so far is forgotten
    before = status("VmRSS")
    if kind == "ours":
        synflow.prune(model, example, compression=compression, steps=STEPS)
    else:
        for _, _masks in zip(range(3), baseline(model, example, compression, STEPS), strict=False):
            pass
    return status("VmHWM") - before


def _warm_up() -> None:
    """Have torch and the compiled loops take what they take on first use, however large the network."""
    layers = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
    images = nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 512, 3), nn.Conv2d(512, 16, 3))
    for model, example in ((layers, torch.ones(1, 1024)), (images, image(32))):
        synflow.prune(model, example, compression=2, steps=5)
    list(baseline(images, image(32), 2, 1))
    give_back()


def status(field: str) -> int:
    """A figure of this process in bytes, as Linux tells it: VmRSS, the memory held now, or VmHWM, the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| network : compression | weights | baseline s | ours s | faster | memory: baseline | ours "
        "| chosen differently | farthest from the edge | apart at the end |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    rows = [row for row in rows if "ratio" in row]
    for row in rows:
        memory, apart = row.get("memory", {}), row.get("kept_differently")
        cells = [
            row["case"], f"{row['weights']:,}", f"{row['baseline_seconds']:.1f}", f"{row['seconds']:.1f}",
            f"**{row['ratio']:.1f}x**", f"{memory['baseline']:.1f}" if memory else "",
            f"{memory['ours']:.2f}" if memory else "",
            f"{row['ties']:,} of {row['removed']:,}" if "ties" in row else "",
            f"{row['farthest']:.0e}" if "ties" in row else "",
            "" if apart is None else f"{apart:,} of {row['kept']:,}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    if not rows:
        return "no row has been timed yet"
    chosen = [row["ratio"] for row in rows if row["case"].startswith(("vgg16", "resnet18"))]
    if chosen:
        mean = math.exp(sum(map(math.log, chosen)) / len(chosen))
        lines += ["", f"Geometric mean over {len(chosen)} rows of VGG-16 and ResNet-18: {mean:.1f}x."]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help=f"of {', '.join(CASES)}")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--parts", nargs="+", default=["time", "masks", "memory"], help="default: %(default)s")
    parser.add_argument("--every", type=int, default=1, help="time each n-th step of the baseline (default: all)")
    parser.add_argument("--check", type=int, default=1, help="compare the masks of each n-th step (default: all)")
    parser.add_argument("--json", type=Path, help="rows are added to those in this file, and all are shown")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(measure_peak(*options.peak.split()))
        return 0
    rows: dict[str, dict[str, Any]] = {}
    if options.json and options.json.exists():
        rows = {row["case"]: row for row in json.loads(options.json.read_text())["rows"]}
    if "time" in options.parts:
        warm_up()
    for name in CASES:
        if any(fnmatchcase(name, pattern) for pattern in options.only):
            rows[name] = {**rows.get(name, {}), **examine(name, options.parts, options)}
            print(f"{name}: {rows[name].get('ratio', 0):.1f}x", file=sys.stderr, flush=True)
            if options.json:
                about = {"threads": options.threads, "torch": torch.__version__, "synflow": synflow.__version__}
                options.json.write_text(json.dumps({"about": about, "rows": list(rows.values())}, indent=1))
    print(table([rows[name] for name in CASES if name in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
