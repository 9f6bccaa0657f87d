"""The work of `synflow demo`, run by run, with a line of progress for each."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .demo_training import METHODS, Outcome, Setting, Variant, compare_variants, outcomes, prepare
from .interrupts import told_how_far
from .output import progress

# Networks are compared in detail at the compression nearest to this.
MIDDLE = 100
BAR_LENGTH = 30


@dataclass(frozen=True)
class Found:
    """All results of a demonstration; `middle` is the compression of the detailed comparison."""

    setting: Setting
    variants: Sequence[Variant]
    outcomes: Sequence[Outcome]
    middle: float


def run_all(
    compressions: Sequence[float], width: int, epochs: int, seed: int, threads: int | None, quiet: bool
) -> Found:
    """Train the network dense, masked and compact, then by every method at every compression."""
    if threads is not None:
        torch.set_num_threads(threads)
    setting = prepare(width, epochs, seed)
    watch = Watch(len(METHODS) * len(compressions) + 3, quiet)
    middle = min(compressions, key=lambda value: abs(value - MIDDLE))
    variants: list[Variant] = []
    found: list[Outcome] = []
    with told_how_far() as milestones:
        for variant in compare_variants(setting, middle):
            variants.append(variant)
            watch.done(f"{variant.name:<22} {variant.accuracy:5.1f}%  {variant.steps_per_second:6.1f} steps/s")
            milestones.last = watch.reached
        for outcome in outcomes(setting, compressions):
            found.append(outcome)
            said = f"{outcome.accuracy:5.1f}%" + ("" if outcome.connected else "  collapsed: no path is left")
            watch.done(f"{outcome.method:<10} {outcome.compression:>6,.0f}x    {said}")
            milestones.last = watch.reached
    watch.close()
    return Found(setting, variants, found, middle)


class Watch:
    """Prints progress and the estimated remaining time on standard error."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.count, self.quiet, self.start = total, 0, quiet, time.monotonic()

    @property
    def reached(self) -> str:
        """The progress, for the message of an interrupt."""
        return f"after {self.count} of {self.total} runs"

    def done(self, text: str) -> None:
        """Count one more finished run."""
        self.count += 1
        if self.quiet:
            return
        passed = time.monotonic() - self.start
        left = passed / self.count * (self.total - self.count)
        live = progress()
        print(f"\r{text:<60}" if live else text, file=sys.stderr, flush=True)
        if live and self.count < self.total:
            filled = BAR_LENGTH * self.count // self.total
            line = f"{'━' * filled}{'─' * (BAR_LENGTH - filled)} {self.count}/{self.total}, about {left:.0f} s left"
            print(line, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line of progress."""
        if not self.quiet:
            print(file=sys.stderr)
