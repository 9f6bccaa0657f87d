"""Paths without magnitudes: is there one, which weights lie on one, how few weights has the shortest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..network.private_copy import Network
from ..support.chunked import count_true, lightest
from ..support.ranking import best_of_each, keep_best
from ..support.torch_modes import plain_tensors
from .measure import Measurement, absolute, measure, precision
from .passes import PassHooks, PassOptions
from .tensor import MANY, Degrees

BOOLEANS = PassOptions(shifts=False, divide=False, saturate=True, follow_inputs=True)
_COUNTING = PassOptions(shifts=False, sources=False, divide=False)
_COUNTING_SOURCES = PassOptions(shifts=False, divide=False)
_FROM_INPUTS = PassOptions(shifts=False, sources=False, divide=False, saturate=True)

# When weights per path are counted, each is 2**-_TINY: 2**_TINY is larger than the number of paths of any network, so
# that paths with more weights vanish beside those with fewer.
_TINY = 1 << 20

# While layers keep more weights than this on average, most of each layer is removed at once; later, weights by score.
WHOLE_PARTS_FROM = 64


@dataclass(frozen=True)
class Reach:
    """Whether an input still reaches an output, and which kept weights lie on a path between them."""

    connected: bool
    on_path: dict[str, Tensor]

    @property
    def live_layers(self) -> frozenset[str]:
        """The layers that have a weight on a path."""
        return frozenset(name for name, mask in self.on_path.items() if self.connected and bool(mask.any()))


def reach(network: Network, masks: Mapping[str, Tensor] | None = None) -> Reach:
    """Follow paths in boolean arithmetic, where nothing can overflow, underflow or cancel.

    A path starts at an input. Where constants enter beside it (class tokens, position tables) a term may need both, so
    they stay in, and the path is followed back to see whether an input is part of it.
    """
    result = measure(network, magnitudes=_ones(network, masks), options=BOOLEANS)
    on_path = {name: score > 0 for name, score in result.scores.items()}
    return Reach(result.value > 0 and result.input_reached, on_path)


def connected(network: Network, masks: Mapping[str, Tensor], hooks: PassHooks | None = None) -> bool:
    """Whether an input still reaches an output, by masks or by magnitudes: what is zero is not there.

    Any positive number serves for a one, so magnitudes that are held anyway need no other tensors.
    """
    kinds = {mask.dtype for mask in masks.values()}
    ones = _ones(network, masks) if torch.bool in kinds else masks
    # Where nothing but inputs starts a flow, what arrives has come from them, and need not be followed back.
    result = measure(network, magnitudes=ones, options=_FROM_INPUTS, gradients=False, hooks=hooks)
    if result.value > 0 and not result.loose:
        return True
    result = measure(network, magnitudes=ones, options=BOOLEANS, gradients=False, hooks=hooks)
    return result.value > 0 and result.input_reached


def fewest_weights(network: Network, masks: Mapping[str, Tensor] | None = None) -> int | None:
    """The number of weights on the path that has the fewest (a weight used twice counts twice); None without a path.

    Every weight is set to the same tiny number; the flow is then that number to the power of the fewest weights. Where
    an output needs a constant that enters beside the inputs (a class token), paths from there count too. A dead end can
    be shorter and hide the path: then the number of the whole network is given, or one, rather too low than too high.
    """
    for options in (_COUNTING, _COUNTING_SOURCES):
        result = measure(
            network, magnitudes=_ones(network, masks), leaf_exponent=-_TINY, options=options, gradients=False
        )
        if result.value > 0:
            return round(-result.log2 / _TINY)
    if not connected(network, _ones(network, None) if masks is None else masks):
        return None
    return 1 if masks is None else fewest_weights(network)


def single_length(network: Network) -> bool:
    """Whether every path has the same number of different weights: it meets a layer once or never, as in a chain."""
    low, high = _degrees(network)
    return bool(((low == high) & (high <= 1)).all())


def repeats(network: Network) -> bool:
    """Whether a term can meet a layer more than once: before gates, in attention, in recurrence."""
    return bool((_degrees(network)[1] > 1).any())


def longest(network: Network) -> int:
    """The most weights that a path can have, where no term meets a layer twice."""
    return int(_degrees(network)[1].sum())


def cuts(network: Network) -> frozenset[str]:
    """The weight tensors that every term meets exactly once: by Theorem 2 their scores sum to the flow."""
    counts = zip(network.weights, *_degrees(network), strict=True)
    return frozenset(name for name, least, most in counts if least == most == 1)


def _degrees(network: Network) -> Degrees:
    """How often a term meets each weight tensor, found once per network; never or many times where it is not known."""
    if "degrees" not in network.constants:
        options = PassOptions(shifts=False, trace=True)
        flow = measure(network, magnitudes=_ones(network, None), options=options, gradients=False)
        never = np.zeros(len(network.weights), dtype=np.int64)
        network.constants["degrees"] = flow.degrees or (never, never + MANY)
    degrees: Degrees = network.constants["degrees"]
    return degrees


def least_for_path(network: Network) -> int | None:
    """A number of weights that every path needs, each counted once; None without a path.

    Exact where a term meets each weight at most once and only inputs start one. Elsewhere it is too low rather than too
    high: then it is the number of layers that every term meets.
    """
    fewest = fewest_weights(network)
    if fewest is None or not repeats(network):
        return fewest
    return min(fewest, max(int((_degrees(network)[0] > 0).sum()), 1))


def shortest_path(
    network: Network, masks: Mapping[str, Tensor] | None = None, *, heavy: bool = False
) -> dict[str, Tensor]:
    """Masks of one path that has the fewest weights, found by thinning out the flow of such paths.

    A weight counts once per use; `heavy` prefers large weights, otherwise those that are used most often stay.
    """
    magnitudes = absolute(network, masks) if heavy else {n: one.clone() for n, one in _ones(network, masks).items()}
    current = {name: magnitude > 0 for name, magnitude in magnitudes.items()}
    # Without sources, with them, or (where masks hide every shortest way) without counting weights.
    for tiny, options in ((_TINY, _COUNTING), (_TINY, _COUNTING_SOURCES), (0, _COUNTING_SOURCES)):
        flow = partial(measure, network, leaf_exponent=-tiny, options=options)
        if flow(magnitudes=magnitudes, gradients=False).value > 0:
            break
    while True:
        for name, magnitude in magnitudes.items():
            magnitude.mul_(current[name])
        result = flow(magnitudes=magnitudes)
        live = {name: current[name] & (score > 0) for name, score in result.scores.items()}
        total = sum(int(mask.sum()) for mask in live.values())
        if total > WHOLE_PARTS_FROM * len(live) and (bold := _thinned(flow, result, live, magnitudes)):
            current = bold
            continue
        # Weights go whose scores sum to less than 99% of the flow (1% allows for rounding), but at least the lightest
        # one, if another path avoids it. When each weight left has the whole flow, up to 1e-4, all are needed.
        drop = max(lightest(result.scores, live, 0.99 * result.value), 1)
        least = min(float(s[live[n]].min()) for n, s in result.scores.items() if bool(live[n].any())) if total else 0.0
        if total == 0 or least >= result.value * (1 - 1e-4):
            return live
        current = keep_best(result.scores, live, total - drop)


def _thinned(
    flow: Callable[..., Measurement],
    whole: Measurement,
    live: Mapping[str, Tensor],
    magnitudes: Mapping[str, Tensor],
) -> dict[str, Tensor] | None:
    """The best few of each layer, where a path with as few weights is among them."""
    for share in (0.1, 0.4):  # 10% removes more than 40% does, but cuts the path more often
        kept = best_of_each(whole.scores, live, share)
        part = flow(magnitudes={name: size * kept[name] for name, size in magnitudes.items()}, gradients=False)
        if part.value > 0 and round(part.log2 / _TINY) == round(whole.log2 / _TINY):
            return kept
    return None


@plain_tensors
def _ones(network: Network, masks: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """One where a weight is kept; a tensor that is kept whole takes no memory, and is not to be written to."""
    dtype = precision(network.weights)  # as in `absolute`: the model may make constants of its own type
    return {
        name: weight.new_ones((), dtype=dtype).expand(weight.shape)
        if masks is None or count_true(masks[name]) == weight.numel()
        else masks[name].to(dtype)
        for name, weight in network.weights.items()
    }
