"""Prune a network before training, without data, and show what is left of each layer.

By default a VGG-16 for CIFAR-100, pruned at 100x with SynFlow: the paper's main example.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import torch

import synflow
from synflow.models.built_in import MODELS, build

BAR = 20
EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(density: float, decades: int) -> str:
    """A bar on a logarithmic scale: empty at 10**-decades, full at one."""
    share = 1 + math.log10(density) / decades if density > 0 else 0.0
    eighths = round(max(0.0, min(1.0, share)) * BAR * 8)
    return (EIGHTHS[-1] * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def percent(density: float) -> str:
    """Three digits that matter, however small the share."""
    return f"{100 * density:.{max(1, 2 - math.floor(math.log10(100 * density)))}f}%" if density else "empty"


def live(mask: torch.Tensor) -> str:
    """How many output units still have a weight."""
    return f"{int(mask.flatten(1).any(1).sum())}/{mask.shape[0]}"


def layer_table(masks: dict[str, torch.Tensor]) -> str:
    """One line per layer: weights kept, units that still have one, density and its bar."""
    densities = {name: float(mask.float().mean()) for name, mask in masks.items()}
    least = min((density for density in densities.values() if density > 0), default=1.0)
    decades = max(1, math.ceil(-math.log10(least)))
    scale = f"1e-{decades}".ljust(BAR - 1) + "1"
    lines = [f"{'layer':<20} {'kept':>8} {'of':>10} {'units':>8} {'density':>8} {scale}"]
    for name, mask in masks.items():
        label = name.removesuffix(".weight")
        label = label if len(label) <= 20 else "…" + label[-19:]
        count = f"{int(mask.sum()):>8,} {mask.numel():>10,} {live(mask):>8} {percent(densities[name]):>8}"
        lines.append(f"{label:<20} {count} {bar(densities[name], decades)}".rstrip())
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  python examples/prune_vgg.py --compression 1000\n"
        "  python examples/prune_vgg.py --model resnet20 --classes 10 --score magnitude",
    )
    add = parser.add_argument
    add("--model", default="vgg16_bn", choices=sorted(MODELS), metavar="NAME", help="one of: " + ", ".join(MODELS))
    add("--compression", type=float, default=100, metavar="X", help="keep one weight in X (default: %(default)s)")
    add("--score", default="synflow", choices=sorted(synflow.SCORES), metavar="NAME",
        help="one of: " + ", ".join(synflow.SCORES) + "; those that read data see random images here"
    )  # fmt: skip
    add("--classes", type=int, default=100, metavar="N", help="outputs of the network (default: %(default)s)")
    add("--side", type=int, default=32, metavar="PIXELS", help="height and width of its images (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of the initial weights (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    torch.manual_seed(options.seed)
    shape = (3, options.side, options.side)
    try:
        model = build(options.model, classes=options.classes, input_shape=shape)
        data = [(torch.randn(32, *shape), torch.randint(options.classes, (32,)))]
        print(f"{options.model} at {options.compression:g}x by {options.score}", flush=True)
        start = time.perf_counter()
        masks = synflow.prune(
            model,
            example := torch.ones(1, *shape),
            compression=options.compression,
            score=options.score,
            data=data,
            seed=options.seed,
            progress=sys.stderr.isatty(),
        )
        seconds = time.perf_counter() - start
        certificate = synflow.certify(model, masks, example)
    except synflow.SynflowError as error:
        sys.exit(f"error: {error}")
    print(f"pruned in {seconds:.1f} s\n")
    print(f"{certificate}\n")
    print(layer_table(masks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
