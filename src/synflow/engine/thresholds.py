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
    cut_from_weights: below this many weights pruning finishes before cutting the network down pays off.
    cut_when_left: the network is cut anew when this share of the weights it held at the last cut is left,
    cut_gain: if at most this share of the tensors it holds stays,
    cut_worth: and at most this share of the whole network: during a cut both are in memory.
    cut_cost: a cut costs about as much as this many measurements, so at least as many must lie ahead.
    fold_from_pixels: images with fewer pixels are measured before folding has paid for its check.
    compile_from_weights: below this many weights compiled loops take longer to load than they save.
    product_positions: with at most this many positions, a convolution is computed as a product with patches.
    block: scores are multiplied out this many at a time, so that a block and its flags stay in the cache.
    sample: this many sampled scores give a limit that few more than the wanted weights lie below.
    list_share, list_most: beyond this share of the weights, or this many, lists of positions take too much memory.
    """

    record_from_steps: int = 4
    cut_from_weights: int = 1 << 20
    cut_when_left: float = 0.4
    cut_gain: float = 0.7
    cut_worth: float = 0.5
    cut_cost: float = 14
    fold_from_pixels: int = 16 * 16
    compile_from_weights: int = 1 << 20
    product_positions: int = 64
    block: int = 1 << 19
    sample: int = 1 << 14
    list_share: float = 1 / 8
    list_most: int = 1 << 24


# Every part of the engine at work on the smallest network, for tests.
EVERYTHING_ON = Thresholds(
    record_from_steps=1, cut_from_weights=0, cut_when_left=0.99, cut_gain=0.99, cut_worth=0.99, cut_cost=0,
    fold_from_pixels=1, compile_from_weights=0, block=16, sample=32,
)  # fmt: skip

_USUAL = Thresholds()
_CURRENT: ContextVar[Thresholds | None] = ContextVar("thresholds", default=None)


def current() -> Thresholds:
    """The thresholds in force."""
    return _CURRENT.get() or _USUAL


@contextmanager
def using(thresholds: Thresholds) -> Iterator[None]:
    """Within it, engines that are made go by other thresholds.

    >>> with using(EVERYTHING_ON):
    ...     current().cut_from_weights
    0
    """
    token = _CURRENT.set(thresholds)
    try:
        yield
    finally:
        _CURRENT.reset(token)
