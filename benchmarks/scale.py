"""Does the cost of pruning grow with the number of weights, and no faster? From a million weights to billions.

    python benchmarks/scale.py [--only PATTERN ...] [--steps N] [--compression X] [--json FILE]

Each network is pruned in a process of its own: seconds per measurement of the flow with its selection (a step takes
several where it has to be done in parts), and the most memory held beyond the weights, as a share of the weights' own
bytes. The exponent of time over weights is fitted over the rows of a kind. The last row has more than 2**31 prunable
weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pruning import status
from torch import Tensor, nn

import synflow


class Block(nn.Module):
    """A layer as in Llama: attention, then a gated MLP, each with a norm before it."""

    def __init__(self, width: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, hidden = heads, width * 8 // 3
        linear = lambda a, b: nn.Linear(a, b, bias=False, dtype=dtype)  # noqa: E731
        self.norms = nn.ModuleList([nn.RMSNorm(width, dtype=dtype) for _ in range(2)])
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*split.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width: int, layers: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width, dtype=dtype)
        self.layers = nn.Sequential(*(Block(width, max(1, width // 128), dtype) for _ in range(layers)))
        self.head = nn.Linear(width, 256, bias=False, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens)))


def mlp(width: int, layers: int, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width, bias=False, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*parts), torch.ones(1, width)


def llama(width: int, layers: int, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    return Llama(width, layers, dtype), torch.zeros(1, 8, dtype=torch.long)


# name: builder, width, layers, type
CASES: dict[str, tuple[Any, int, int, torch.dtype]] = {
    "mlp 1M": (mlp, 512, 4, torch.float32),
    "mlp 10M": (mlp, 1536, 4, torch.float32),
    "mlp 100M": (mlp, 5120, 4, torch.float32),
    "mlp 1B": (mlp, 8192, 15, torch.float32),
    "llama 3M": (llama, 256, 4, torch.bfloat16),
    "llama 25M": (llama, 512, 8, torch.bfloat16),
    "llama 200M": (llama, 1024, 16, torch.bfloat16),
    "llama 1B": (llama, 2048, 20, torch.bfloat16),
    "mlp 2.2B": (mlp, 8192, 33, torch.bfloat16),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    make, width, layers, dtype = CASES[name]
    with torch.device("meta"):
        model, _ = make(width, layers, dtype)
    model = model.to_empty(device="cpu")
    _, example = make(8, 1, dtype)
    torch.manual_seed(0)
    for parameter in model.parameters():
        # Drawn in parts, so that nothing larger than a part is held besides the weight.
        for part in parameter.detach().view(-1).split(1 << 22):
            part.copy_(torch.randn(len(part)) if parameter.dim() > 1 else torch.ones(len(part)))
    return model, example if example.dtype == torch.long else torch.ones(1, width)


def examine(name: str, steps: int, compression: float) -> dict[str, Any]:
    """Prune one network, in this process."""
    # Large enough that the compiled loops are loaded before memory is looked at.
    warm = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
    synflow.prune(warm, torch.ones(1, 1024), compression=2, steps=4)
    model, example = build(name)
    size = sum(weight.numel() for weight in synflow.prunable(model).values())
    held = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    Path("/proc/self/clear_refs").write_text("5")
    before, start = status("VmRSS"), time.perf_counter()
    masks = synflow.prune(model, example, compression=compression, steps=steps)
    seconds, most = time.perf_counter() - start, status("VmHWM") - before
    kept = sum(int(np.count_nonzero(mask.numpy())) for mask in masks.values())
    passes = sum(step.substeps for step in masks.steps)
    return {
        "case": name, "weights": size, "type": str(CASES[name][3]).removeprefix("torch."), "steps": steps,
        "compression": compression, "seconds": seconds, "passes": passes, "per_pass": seconds / passes,
        "kept": kept, "exact": kept == round(size / compression),
        "extra": most / held, "gigabytes": (before + most) / 2**30,
        "masks_and_weights": (held + size) / held,
    }  # fmt: skip


def exponent(rows: list[dict[str, Any]]) -> float:
    """The slope of log time over log weights."""
    sizes, times = ([np.log(row[key]) for row in rows] for key in ("weights", "per_pass"))
    return float(np.polyfit(sizes, times, 1)[0])


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| network | weights | type | steps | measurements | s each | beyond the weights | GiB in all | kept | exact |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['case']} | {row['weights']:,} | {row['type']} | {row['steps']} | {row['passes']} | "
            f"{row['per_pass']:.3g} | {row['extra']:.2f}x | "
            f"{row['gigabytes']:.1f} | {row['kept']:,} | {'yes' if row['exact'] else '**no**'} |"
        )
    for kind in ("mlp", "llama"):
        chosen = [row for row in rows if row["case"].startswith(kind) and row["weights"] >= 5e6]
        # Rows of one precision and one schedule: others do other work for each weight.
        alike = [row for row in chosen if all(row[k] == chosen[0][k] for k in ("type", "steps", "compression"))]
        if len(alike) > 1:
            lines += ["", f"{kind}: time grows as weights to the power {exponent(alike):.2f} (from 9 M weights on)."]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help=f"of {', '.join(CASES)}")
    parser.add_argument("--steps", type=int, default=20, help="pruning steps (default: %(default)s)")
    parser.add_argument("--compression", type=float, default=10.0, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="rows are added to those in this file, and all are shown")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(examine(options.one, options.steps, options.compression)))
        return 0
    rows: dict[str, dict[str, Any]] = {}
    if options.json and options.json.exists():
        rows = {row["case"]: row for row in json.loads(options.json.read_text())["rows"]}
    for name in CASES:
        if any(fnmatchcase(name, pattern) for pattern in options.only):
            command = [sys.executable, __file__, "--one", name, "--steps", str(options.steps)]
            command += ["--compression", str(options.compression)]
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            rows[name] = json.loads(answer.splitlines()[-1])
            print(f"{name}: {rows[name]['per_pass']:.3g} s per measurement", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps({"torch": torch.__version__, "rows": list(rows.values())}, indent=1))
    print(table([rows[name] for name in CASES if name in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
