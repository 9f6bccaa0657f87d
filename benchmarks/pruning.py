"""How fast is pruning, against the paper's algorithm written out plainly, step by step in one process?

    python benchmarks/pruning.py [--only PATTERN ...] [--threads N] [--json FILE]

The baseline follows the paper's pseudocode: absolute values and signs of the whole model at each step, forward and
backward on dense tensors, all scores joined, `torch.kthvalue`, dense masks. Its steps and ours alternate, so that
whatever else the machine does hits both. Then each of our steps is compared with the library's plain path (scores held,
one selection over all of them, no compaction) from the same masks. Memory is that of fresh processes.
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
from synflow.engine import fast as survivors
from synflow.experiments import models
from synflow.pruning import flow_steps as flow_pruning
from synflow.pruning.schedules import exponential
from synflow.pruning.settings import Plan, make_plan
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
    "vgg16:10": (lambda: models.build("vgg16_bn", classes=100), lambda: image(32), 10),
    "vgg16:100": (lambda: models.build("vgg16_bn", classes=100), lambda: image(32), 100),
    "vgg16:1000": (lambda: models.build("vgg16_bn", classes=100), lambda: image(32), 1000),
    "resnet18:100": (lambda: models.build("resnet18", classes=200, input_shape=(3, 64, 64)), lambda: image(64), 100),
    "vgg19-224:1000": (
        lambda: models.build("vgg19_bn", classes=1000, input_shape=(3, 224, 224)),
        lambda: image(224),
        1000,
    ),
    "gpt2:10": (GPT, lambda: torch.zeros(1, 32, dtype=torch.long), 10),
}


def baseline(model: nn.Module, example: Tensor, compression: float, steps: int) -> Iterator[dict[str, Tensor]]:
    """The paper's algorithm, on a model of its own, as its pseudocode has it; masks after each step."""
    weights = synflow.prunable(model)
    masks = {name: torch.ones_like(weight) for name, weight in weights.items()}
    dense = {name: weight.detach().clone() for name, weight in weights.items()}
    total = sum(weight.numel() for weight in weights.values())
    model.eval()
    for step in range(1, steps + 1):
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(dense[name] * masks[name])
            signs = {name: torch.sign(value) for name, value in model.state_dict().items()}
            for value in model.state_dict().values():
                value.abs_()
        model.zero_grad()
        model(example).sum().backward()
        scores = {name: (weight.grad * weight).detach().abs() for name, weight in weights.items()}
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.mul_(signs[name])
        joined = torch.cat([score.flatten() for score in scores.values()])
        going = total - round(total * exponential(step, steps, 1 / compression))
        if going > 0:
            threshold = torch.kthvalue(joined, going).values
            masks = {name: (score > threshold).float() for name, score in scores.items()}
        yield masks


def ours(model: nn.Module, example: Tensor, compression: float, steps: int) -> Iterator[dict[str, Tensor]]:
    """What `synflow.prune` does by default, a step at a time; masks with the last."""
    plan = plan_of(model, example, compression, steps)
    for step in flow_pruning.flow_steps(plan, hold=False):
        yield step.masks


def plan_of(model: nn.Module, example: Tensor, compression: float, steps: int) -> Plan:
    return make_plan(
        model, example, compression=compression, density=None, score="synflow", steps=steps, schedule=None, margin=0.5,
        guard=True, scope="global", data=None, loss=F.cross_entropy, select=None, protect=(), masks=None, seed=0,
    )  # fmt: skip


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
    for step in flow_pruning.flow_steps(plan_of(model, example, compression, steps), hold=True):
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


def timed(steps: Iterator[dict[str, Tensor]]) -> Iterator[tuple[float, dict[str, Tensor]]]:
    while True:
        start = time.perf_counter()
        try:
            masks = next(steps)
        except StopIteration:
            return
        yield time.perf_counter() - start, masks


class Phases:
    """Seconds by phase, taken at the doors of the library's own functions while ours runs."""

    DOORS = (
        ("forward and backward", survivors.Survivors, "measure"),
        ("selection", flow_pruning, "lightest_weights"),
        ("cutting down", survivors.Survivors, "shrink"),
        ("masking", survivors.Survivors, "drop"),
    )

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((name for name, _, _ in self.DOORS), 0.0)
        self.inside = False
        for name, owner, attribute in self.DOORS:
            setattr(owner, attribute, self.wrapped(name, getattr(owner, attribute)))

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return function(*args, **kwargs)
            self.inside, start = True, time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside = False
                self.seconds[name] += time.perf_counter() - start

        return run


def warm_up() -> None:
    """Let both load and compile what they need once per process, on a network of two million weights."""
    model, example = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)), torch.ones(1, 1024)
    for steps in (baseline, ours):
        for _ in steps(model, example, 100, 10):
            pass


def clocked(name: str, phases: Phases, every: int) -> dict[str, Any]:
    """Both side by side; `every` n-th step of the baseline only, whose dense steps all cost the same."""
    build, make_example, compression = CASES[name]
    torch.manual_seed(0)
    model, example = build(), make_example()
    torch.manual_seed(0)
    other = build()
    phases.seconds = dict.fromkeys(phases.seconds, 0.0)
    theirs = timed(baseline(other, example, compression, STEPS))
    mine, spent = 0.0, []
    for index, (seconds, _) in enumerate(timed(ours(model, example, compression, STEPS))):
        mine += seconds
        if index % every == 0:
            spent.append(next(theirs)[0])
    shares = {key: value / mine for key, value in phases.seconds.items()}
    whole = sum(spent) / len(spent) * STEPS
    return {
        "steps": STEPS, "baseline_seconds": whole, "baseline_steps_timed": len(spent), "seconds": mine,
        "ratio": whole / mine, "phases": {**shares, "rest": 1 - sum(shares.values())},
    }  # fmt: skip


def examine(name: str, parts: list[str], phases: Phases, options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for of one row."""
    build, make_example, compression = CASES[name]
    torch.manual_seed(0)
    model, example = build(), make_example()
    weights = sum(weight.numel() for weight in synflow.prunable(model).values())
    row: dict[str, Any] = {"case": name, "weights": weights, "kept": round(weights / compression)}
    if "time" in parts:
        row |= clocked(name, phases, options.every)
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
    build, make_example, compression = CASES[name]
    torch.manual_seed(0)
    _warm_up()
    model, example = build(), make_example()
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark so far is forgotten
    before = status("VmRSS")
    steps = (ours if kind == "ours" else baseline)(model, example, compression, STEPS)
    for _, _masks in zip(range(3), steps, strict=False):
        pass
    return status("VmHWM") - before


def _warm_up() -> None:
    """Have torch and the compiled loops take what they take on first use, however large the network."""
    for function in (ours, baseline):
        for _ in function(models.build("conv", classes=10), image(32), 2, 1):
            pass
    layers = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
    images = nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 512, 3), nn.Conv2d(512, 16, 3))
    for model, example in ((layers, torch.ones(1, 1024)), (images, image(32))):
        for _ in ours(model, example, 2, 5):
            pass
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
    lines += [
        "",
        "| share of our time | " + " | ".join(rows[0]["phases"]) + " |",
        "|---|" + "--:|" * len(rows[0]["phases"]),
    ]
    lines += [
        f"| {row['case']} | " + " | ".join(f"{value:.0%}" for value in row["phases"].values()) + " |" for row in rows
    ]
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
    phases = Phases()
    if "time" in options.parts:
        warm_up()
    for name in CASES:
        if any(fnmatchcase(name, pattern) for pattern in options.only):
            rows[name] = {**rows.get(name, {}), **examine(name, options.parts, phases, options)}
            print(f"{name}: {rows[name].get('ratio', 0):.1f}x", file=sys.stderr, flush=True)
            if options.json:
                about = {"threads": options.threads, "torch": torch.__version__, "synflow": synflow.__version__}
                options.json.write_text(json.dumps({"about": about, "rows": list(rows.values())}, indent=1))
    print(table([rows[name] for name in CASES if name in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
