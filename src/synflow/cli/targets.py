"""Targets people think in: from `--flops 0.25` or `--speedup 3` to a compression, by trial."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..benchmark_results import Benchmark
from ..benchmarking import bench
from ..compaction import compact
from ..errors import SynflowError
from ..masks import bake
from ..network import arguments
from ..pruning import Masks
from ..selection import prunable
from ..theory import max_compression

__all__ = ["Found", "Target", "find_flops", "find_speedup", "flops", "simple_density"]

TRIALS = 9
CLOSE = 0.03  # of the target, relative: closer is not worth another trial
Prune = Callable[[float], Masks]


@dataclass(frozen=True)
class Target:
    """What the user asked for; exactly one of these."""

    compression: float | None = None
    density: float | None = None
    keep: int | None = None
    flops: float | None = None
    speedup: float | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) != 1:
            got = "none of them" if not given else " and ".join(f"--{name}" for name in given)
            raise SynflowError(f"give one target: --compression, --density, --keep, --flops or --speedup; got {got}")
        if self.flops is not None and not 0 < self.flops <= 1:
            raise SynflowError(f"--flops is the share of the dense network's operations, 0 to 1, got {self.flops:g}")
        if self.speedup is not None and not self.speedup >= 1:
            raise SynflowError(f"--speedup is at least 1, got {self.speedup:g}")


@dataclass(frozen=True)
class Found:
    """The masks that a search ended with, what they reach, and how sure that is."""

    masks: Masks
    compression: float
    reached: float
    low: float
    high: float
    met: bool
    benchmark: Benchmark | None = None


def simple_density(target: Target, model: nn.Module, select: Any = None, protect: Any = ()) -> float | None:
    """The density of a target that needs no search; None for those that do."""
    if target.compression is not None:
        if not target.compression >= 1 or math.isinf(target.compression):
            raise SynflowError(f"--compression is at least 1 (100 keeps one weight in 100), got {target.compression:g}")
        return 1 / target.compression
    if target.density is not None:
        return target.density
    if target.keep is None:
        return None
    size = sum(weight.numel() for weight in prunable(model, select, protect).values())
    if not 1 <= target.keep <= size:
        raise SynflowError(f"--keep {target.keep}: the network has {size:,} prunable weights; keep 1 to all of them")
    return target.keep / size


def find_flops(target: float, model: nn.Module, example: Any, prune: Prune, tell: Callable[[str], None]) -> Found:
    """The lowest compression whose compact network needs at most this share of the dense one's operations."""
    dense = flops(model, example)

    def reached(masks: Masks) -> tuple[float, float, float, Benchmark | None]:
        share = flops(compact(model, example, masks), example) / dense
        return share, share, share, None

    return _search("flops", target, model, example, prune, reached, falling=True, tell=tell)


def find_speedup(
    target: float, model: nn.Module, example: Any, prune: Prune, tell: Callable[[str], None],
    *, task: str = "inference", batch: int = 64, repeats: int = 7,
) -> Found:  # fmt: skip
    """The lowest compression whose compact network is this many times faster than the dense one, on this machine."""
    training = task == "training step"

    def reached(masks: Masks) -> tuple[float, float, float, Benchmark | None]:
        result = bench(
            model, masks, example, repeats=repeats, progress=False,
            train_batches=(batch,) if training else (), inference_batches=() if training else (batch,),
        )  # fmt: skip
        by = {timing.variant: timing for timing in result.timings}
        dense, small = by["dense"], by["compact"]
        return small.ratio, dense.low / small.high, dense.high / small.low, result

    return _search("speedup", target, model, example, prune, reached, falling=False, tell=tell)


def flops(model: nn.Module, example: Any) -> int:
    """Floating-point operations of one forward pass, counted, not timed."""
    import copy

    plain = copy.deepcopy(model)
    bake(plain)
    args, kwargs = arguments(example)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        plain.eval()(*args, **kwargs)
    return int(counter.get_total_flops())


def _search(
    kind: str, target: float, model: nn.Module, example: Any, prune: Prune,
    reach: Callable[[Masks], tuple[float, float, float, Benchmark | None]],
    *, falling: bool, tell: Callable[[str], None],
) -> Found:  # fmt: skip
    """Bisect log compression between one and the maximum; each trial is a whole pruning run, measured."""
    low, high = 0.0, math.log(min(max_compression(model, example), 1e5))
    best: Found | None = None
    # A first guess from experience: operations and time fall about as the square root of compression.
    guess = min(high * 0.9, 2 * math.log(1 / target if falling else target))
    for trial in range(1, TRIALS + 1):
        middle = guess if trial == 1 else (low + high) / 2
        compression = math.exp(middle)
        masks = prune(1 / compression)
        value, least, most, benchmark = reach(masks)
        met = value <= target if falling else value >= target
        tell(f"trial {trial}: {compression:.4g}x compression gives {kind} {value:.3g}")
        found = Found(masks, compression, value, least, most, met, benchmark)
        if best is None or (met, -compression if met else compression) > (
            best.met, -best.compression if best.met else best.compression
        ):  # fmt: skip
            best = found
        if met and abs(value / target - 1) <= CLOSE:
            break
        low, high = (low, middle) if met else (middle, high)
        if math.exp(high - low) < 1.02:
            break
    assert best is not None
    return best
