"""Paths without magnitudes: is there one, which weights lie on one, how few weights has the shortest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .allocation import keep_best
from .linearization import Arithmetic
from .measurement import measure
from .network import Network
from .streams import lightest

# log2 of one over the magnitude that stands for every weight when weights per path are counted: larger than log2 of
# the number of paths of any network, so that paths with more weights vanish beside those with fewer.
_TINY = 1 << 20


@dataclass(frozen=True)
class Reach:
    """Whether an input still reaches an output, and which kept weights lie on a path between them."""

    connected: bool
    on_path: dict[str, Tensor]


def reach(network: Network, masks: Mapping[str, Tensor] | None = None) -> Reach:
    """Follow paths in the booleans, where nothing can overflow, underflow or cancel."""
    result = measure(network, magnitudes=_ones(network, masks), arithmetic=_booleans())
    return Reach(result.value > 0, {name: score > 0 for name, score in result.scores.items()})


def connected(network: Network, masks: Mapping[str, Tensor]) -> bool:
    """Whether an input still reaches an output: the forward half of `reach`."""
    return measure(network, magnitudes=_ones(network, masks), arithmetic=_booleans(), gradients=False).value > 0


def fewest_weights(network: Network, masks: Mapping[str, Tensor] | None = None) -> int | None:
    """The number of weights on the path that has the fewest (a weight used twice counts twice); None without a path.

    Every weight is set to the same tiny number; the flow is then that number to the power of the fewest weights.
    """
    result = measure(
        network, magnitudes=_ones(network, masks), leaf_exponent=-_TINY, arithmetic=_counting(), gradients=False
    )
    return None if result.value <= 0 else round(-result.log2 / _TINY)


def shortest_path(network: Network, masks: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Masks of one path that has the fewest weights, found by thinning out the flow of the shortest paths."""
    current = {name: mask > 0 for name, mask in _ones(network, masks).items()}
    while True:
        ones = {name: mask.to(torch.float32) for name, mask in current.items()}
        result = measure(network, magnitudes=ones, leaf_exponent=-_TINY, arithmetic=_counting())
        live = {name: current[name] & (score > 0) for name, score in result.scores.items()}
        total = sum(int(mask.sum()) for mask in live.values())
        # At least the least-scored weight goes if another path avoids it; then each weight left is on every path.
        drop = max(lightest(result.scores, live, 0.99 * result.value), 1)
        least = min(float(s[live[n]].min()) for n, s in result.scores.items() if bool(live[n].any())) if total else 0.0
        if total == 0 or least >= result.value * (1 - 1e-4):
            return live
        current = keep_best(result.scores, live, total - drop)


def _ones(network: Network, masks: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    return {
        name: torch.ones_like(weight, dtype=torch.float32) if masks is None else masks[name].to(torch.float32)
        for name, weight in network.weights.items()
    }


def _booleans() -> Arithmetic:
    return Arithmetic(shifts=False, divide=False, saturate=True)


def _counting() -> Arithmetic:
    return Arithmetic(shifts=False, divide=False)
