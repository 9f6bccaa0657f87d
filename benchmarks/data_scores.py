"""What do scores that need data hold in memory? SNIP and GraSP, on few batches and on many.

    python benchmarks/data_scores.py [--batch N]

Each figure is the most that a process of its own holds beyond the model, its data and what torch takes at first use.
Batches are summed up one by one, so more of them must not cost more; GraSP differentiates twice, and should not need
more than twice what SNIP does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from pruning import status

import synflow
from synflow.experiments import models

MODELS = ("vgg16_bn", "resnet20")
SCORES = ("snip", "grasp")
BATCHES = (1, 8)


def examine(name: str, score: str, batches: int, size: int) -> int:
    """Bytes held at the most while one score is taken, in this process."""
    torch.manual_seed(0)
    model, example = models.build(name, classes=10), torch.ones(1, 3, 32, 32)
    tiny = [(torch.randn(2, 3, 32, 32), torch.randint(10, (2,)))]
    for warm in SCORES:
        synflow.score(models.build("conv", classes=10), example, warm, tiny)
    data = [(torch.randn(size, 3, 32, 32), torch.randint(10, (size,))) for _ in range(batches)]
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark so far is forgotten
    before = status("VmRSS")
    synflow.score(model, example, score, data)
    return status("VmHWM") - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="images in a batch (default: %(default)s)")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(examine(options.one[0], options.one[1], int(options.one[2]), options.batch))
        return 0
    print("| network | batches | snip | grasp | grasp / snip |\n|---|--:|--:|--:|--:|")
    for name in MODELS:
        for batches in BATCHES:
            command = [sys.executable, __file__, "--batch", str(options.batch), "--one", name]
            snip, grasp = (
                int(subprocess.check_output([*command, score, str(batches)], text=True).split()[-1]) for score in SCORES
            )
            print(
                f"| {name} | {batches} | {snip / 1e6:.0f} MB | {grasp / 1e6:.0f} MB | {grasp / snip:.2f} |", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
