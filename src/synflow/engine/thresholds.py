"""One table of thresholds: from where on each part of the fast engine is used. Overridable as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """From where on each part of the engine pays off; measured on two cores (docs/lab-notes/engine.md).

    record_from_steps: a run of fewer steps ends before a recorded measurement has paid for its recording.
    fold_from_pixels: images with fewer pixels are measured before folding has paid for its check.
    compile_from_weights: below this many weights compiled loops take longer to load than they save.
    product_positions: with at most this many positions, a convolution is computed as a product with patches.
    block: scores are multiplied out this many at a time, so that a block and its flags stay in the cache.
    sample: this many sampled scores give a limit that few more than the wanted weights lie below.
    list_share, list_most: beyond this share of the weights, or this many, lists of positions take too much memory.
    """

    record_from_steps: int = 4
    fold_from_pixels: int = 16 * 16
    compile_from_weights: int = 1 << 20
    product_positions: int = 64
    block: int = 1 << 19
    sample: int = 1 << 14
    list_share: float = 1 / 8
    list_most: int = 1 << 24


# Every part of the engine at work on the smallest network, for tests.
EVERYTHING_ON = Thresholds(record_from_steps=1, fold_from_pixels=1, compile_from_weights=0, block=16, sample=32)

_USUAL = Thresholds()
_CURRENT: ContextVar[Thresholds | None] = ContextVar("thresholds", default=None)


def current() -> Thresholds:
    """The thresholds in force."""
    return _CURRENT.get() or _USUAL


@contextmanager
def using(thresholds: Thresholds) -> Iterator[None]:
    """Within it, engines that are made go by other thresholds.

    >>> with using(EVERYTHING_ON):
    ...     current().block
    16
    """
    token = _CURRENT.set(thresholds)
    try:
        yield
    finally:
        _CURRENT.reset(token)
