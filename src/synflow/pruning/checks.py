"""Settings that are refused before anything is computed: numbers out of range, counts at which no path is left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from torch import Tensor

from ..errors import SynflowError, brief, check_function
from ..flow.dispatch import NoRuleError
from ..flow.paths import connected, fewest_weights, least_for_path, longest, repeats, shortest_path, single_length
from ..network.private_copy import Network
from ..support.chunked import count
from .skeleton import short_path

# A path has a few weights per tensor; only counts up to this many per tensor can be too few for one.
PATH_PER_LAYER = 64
# If at most this many weights per layer are to stay, the path or skeleton that has to stay is searched for before the
# first step; with more, few runs need one, and the search takes time.
TIGHT = 8
# The most steps that a run may ask for: no network profits from more, and a typing error is refused at once.
MOST_STEPS = 10**6


def check_kinds(loss: Any, data: Any) -> None:
    """Refuse what is not of the kind that a setting takes."""
    check_function("loss", loss, "(outputs, targets) -> tensor")
    if data is not None and (isinstance(data, (str, bytes, Mapping, Tensor)) or not isinstance(data, Iterable)):
        raise SynflowError(f"data must be batches (inputs, targets), such as a list or a DataLoader, got {brief(data)}")


def checked_margin(margin: Any) -> float:
    """A share of the flow, as a number of Python; here and below those of NumPy are taken, too."""
    if not _is_number(margin) or not 0 < margin < 1:
        raise SynflowError(f"margin must lie between 0 and 1, got {brief(margin)}")
    return float(margin)


def checked_steps(steps: Any) -> int | None:
    """A number of steps, or None: the default of the score."""
    if steps is not None and (not is_whole(steps) or steps < 1):
        raise SynflowError(f"steps must be a whole number of at least 1, got {brief(steps)}")
    if steps is not None and steps > MOST_STEPS:
        raise SynflowError(f"steps must be at most {MOST_STEPS:,}, got {brief(steps)}")
    return None if steps is None else int(steps)


def checked_seed(seed: Any) -> int:
    """A seed that torch takes."""
    if not is_whole(seed):
        raise SynflowError(f"seed must be a whole number, got {brief(seed)}")
    if not -(2**63) <= seed < 2**63:
        raise SynflowError(f"seed must fit into 64 bits, got {seed!r}")
    return int(seed)


def is_whole(value: Any) -> bool:
    """Whether this is an integer, of Python or of NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _as_float(number: Real) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number beyond all floats
        return math.inf


def target_density(compression: Any, density: Any) -> float:
    """The share of weights that stays, from the one of the two that is given."""
    if (compression is None) == (density is None):
        raise SynflowError("give either compression=... (at least 1) or density=... (the share that stays, 0 to 1)")
    if compression is not None:
        if not _is_number(compression) or not 1 <= _as_float(compression) < math.inf:
            raise SynflowError(f"compression must be at least 1 (100 keeps one in 100), got {brief(compression)}")
        return 1.0 / float(compression)
    if not _is_number(density) or not 0 < density <= 1:
        raise SynflowError(f"density is the share of weights that stays, above 0 and at most 1, got {brief(density)}")
    return float(density)


def check_target(network: Network, keep: int, start: int, density: float) -> None:
    """Refuse a count of none, or of more weights than the given masks keep."""
    if keep < 1:
        raise SynflowError(
            f"compression {1 / density:g} of {network.size} weights leaves none; the most that leaves a path is "
            f"{network.size / max(count(short_path(network)), 1):g}"
        )
    if keep > start:
        raise SynflowError(
            f"{keep} of {network.size} weights are to stay but the given masks keep only {start}; pruned weights stay "
            f"pruned: ask for a compression of at least {network.size / start:g}"
        )


def check_reachable(network: Network, masks: Mapping[str, Tensor], keep: int, strict: bool) -> None:
    """Refuse a compression at which no network of this architecture has a path."""
    if keep > PATH_PER_LAYER * len(network.weights) and not strict:
        return
    found = ""
    try:
        fewest = fewest_weights(network, masks)
        if fewest is not None and (fewest > keep or (keep <= TIGHT * len(masks) and not single_length(network))):
            # The number holds for the whole network; under the masks more may be needed, which the loop finds out.
            least, fewest = least_for_path(network), count(short_path(network, enough=keep))
            found = "" if fewest == least else " (the fewest that were found)"
    except NoRuleError:
        if strict:
            raise
        return  # scores without a flow do not need the table of rules
    if fewest is None:
        raise SynflowError(
            "no path leads from an input to an output"
            + (" under the given masks" if count(masks) < network.size else "; check the model and the example")
        )
    if keep < fewest:
        raise SynflowError(
            f"compression {network.size / keep:g} keeps {keep} of {network.size} weights, but a path from input to "
            f"output needs {fewest}{found}; the maximum compression is {network.size / fewest:g}"
        )


def path_to_keep(network: Network, start: Mapping[str, Tensor], keep: int) -> dict[str, Tensor] | None:
    """A path to protect, where paths differ in length: flow alone may lead onto a longer one."""
    if keep > PATH_PER_LAYER * len(network.weights) or single_length(network):
        return None
    if not repeats(network) and keep >= longest(network):
        return None  # no path has more weights than are to stay
    path = shortest_path(network, start, heavy=True)
    return path if count(path) <= keep and connected(network, path) else short_path(network, start)
