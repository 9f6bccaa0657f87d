"""The lightest weights of a network, found while scores are made a block at a time and thrown away again.

A sample of scores gives a limit below which a few more than the wanted number lie; one pass keeps what is below it;
an exact selection among those few follows. Counts and gathered values add up over tensors, so over shards as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .errors import SynflowError
from .sensitivity import Factors, Sensitivity

# A block of scores and its flags stay in the caches of most processors.
BLOCK = 1 << 19
SAMPLE = 1 << 14
# Beyond this share of the weights, lists of positions cost more than masks.
SHARE = 1 / 6


@dataclass(frozen=True)
class Scored:
    """Scores that are not held: S = |w| dR/d|w| by magnitudes and sensitivities, for the weights that masks keep."""

    magnitudes: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    sensitivities: Mapping[str, Sensitivity]
    _factors: dict[str, list[Factors]] = field(default_factory=dict)

    def whole(self) -> dict[str, Tensor]:
        """All scores, held."""
        scores = {}
        for name, magnitude in self.magnitudes.items():
            scores[name] = torch.empty(magnitude.shape, dtype=_wide(magnitude), device=magnitude.device)
            rows = scores[name].view(self.sensitivities[name].rows, -1)
            for start, stop, block in self.blocks(name):
                rows[start:stop] = block
        return scores

    def blocks(self, name: str) -> Iterator[tuple[int, int, Tensor]]:
        """Scores of one tensor as (first row, last row, block); a block is overwritten by the next."""
        sensitivity, magnitude = self.sensitivities[name], self.magnitudes[name]
        height, width = sensitivity.rows, sensitivity.columns
        rows, factors = magnitude.reshape(height, width), self.factors(name)
        step = max(1, min(height, BLOCK // max(width, 1)))
        room = torch.empty(step, width, dtype=_wide(magnitude), device=magnitude.device)
        for start in range(0, height, step):
            stop = min(start + step, height)
            block = sensitivity.block(factors, start, stop, room[: stop - start]).mul_(rows[start:stop])
            # Scores are not negative, so one sum finds any that is not finite.
            if not math.isfinite(float(block.sum())):
                raise not_finite(name, block)
            yield start, stop, block

    def sample(self, total: int) -> np.ndarray:
        """Sorted scores of some kept weights, each as likely to be among them as any other."""
        parts, part = [], min(1.0, SAMPLE / total)
        for index, (name, mask) in enumerate(self.masks.items()):
            flat = mask.reshape(-1)
            if part == 1.0:
                positions = torch.arange(flat.numel(), device=flat.device)
            else:
                dice = torch.Generator().manual_seed(index)
                positions = torch.randint(flat.numel(), (math.ceil(flat.numel() * part),), generator=dice)
                positions = positions.to(flat.device)
            positions = positions[flat[positions]]
            gradient = self.sensitivities[name].at(self.factors(name), positions)
            parts.append((gradient * self.magnitudes[name].reshape(-1)[positions]).cpu().numpy())
        return np.sort(np.concatenate(parts))

    def factors(self, name: str) -> list[Factors]:
        """The thin matrices of one tensor, made once."""
        if name not in self._factors:
            self._factors[name] = self.sensitivities[name].factors()
        return self._factors[name]


@dataclass(frozen=True)
class Lightest:
    """Flat positions of the lightest weights by tensor, in order, and the sum of their scores."""

    positions: dict[str, Tensor]
    total: float

    @property
    def number(self) -> int:
        """How many they are."""
        return sum(len(places) for places in self.positions.values())


def lightest_weights(scored: Scored, total: int, number: int, budget: float = math.inf) -> Lightest | None:
    """The `number` lightest of `total` kept weights, later positions first among equals.

    Fewer, where the scores of so many would sum to the budget or more. None where they are a large part of all.
    """
    if number == 0:
        return Lightest({}, 0.0)
    sample = scored.sample(total)
    position = number / total * len(sample)
    if budget < math.inf:
        sums = np.cumsum(sample, dtype=np.float64) * (total / max(len(sample), 1))
        within = int(np.searchsorted(sums, budget))
        position = min(position, within)
    if position > SHARE * len(sample):
        return None
    spread = 4.0 * math.sqrt(position) + 4.0
    while True:
        top = math.ceil(position + spread)
        limit = float(sample[top]) if top < len(sample) else math.inf
        found = _below(scored, limit)
        values = np.concatenate([values for _, values in found.values()])
        affordable = len(values)
        if budget < math.inf:
            affordable = int(np.searchsorted(np.cumsum(np.sort(values), dtype=np.float64), budget))
        if affordable < len(values) or len(values) >= number or limit == math.inf:
            return _exactly(scored, found, values, min(affordable, number))
        spread *= 4


def _below(scored: Scored, limit: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Positions and scores of the kept weights that score at most the limit."""
    found = {}
    for name, mask in scored.masks.items():
        rows = mask.reshape(scored.sensitivities[name].rows, -1)
        positions, values = [], []
        for start, stop, block in scored.blocks(name):
            inside, scores = _at_most(block.view(-1), rows[start:stop].reshape(-1), limit)
            positions.append(inside + start * rows.shape[1])
            values.append(scores)
        found[name] = (np.concatenate(positions), np.concatenate(values))
    return found


def _at_most(scores: Tensor, kept: Tensor, limit: float) -> tuple[np.ndarray, np.ndarray]:
    if scores.device.type == "cpu":
        # NumPy compares and gathers several times faster than torch does on a processor.
        flat = scores.numpy()
        low = np.less_equal(flat, flat.dtype.type(limit))
        inside = np.flatnonzero(np.logical_and(low, kept.numpy(), out=low))
        return inside, flat[inside]
    places = torch.nonzero(torch.le(scores, limit).logical_and_(kept)).view(-1)
    return places.cpu().numpy(), scores[places].cpu().numpy()


def _exactly(
    scored: Scored, found: Mapping[str, tuple[np.ndarray, np.ndarray]], everything: np.ndarray, number: int
) -> Lightest:
    """The lightest `number` among those found; of equals at the edge the last ones, so that earlier ones stay."""
    if number == 0:
        return Lightest({}, 0.0)
    edge = np.partition(everything, number - 1)[number - 1]
    missing = number - int(np.count_nonzero(everything < edge))
    positions, sums = {}, []
    for name, (places, values) in reversed(list(found.items())):
        going = values < edge
        if missing > 0:
            ties = np.flatnonzero(values == edge)[-missing:]
            going[ties] = True
            missing -= len(ties)
        positions[name] = torch.from_numpy(places[going]).to(scored.masks[name].device)
        sums.append(float(values[going].sum(dtype=np.float64)))
    return Lightest({name: positions[name] for name in found}, math.fsum(sums))


def _wide(magnitude: Tensor) -> torch.dtype:
    return torch.float64 if magnitude.dtype == torch.float64 else torch.float32


def not_finite(name: str, scores: Tensor) -> SynflowError:
    """The error for scores that overflowed."""
    bad = int((~torch.isfinite(scores)).sum())
    return SynflowError(
        f"{name}: {bad} of {scores.numel()} flow scores are not finite; a weight or statistic is extreme "
        "(below 1e-38 or above 1e38): rescale it, or score in float64 with model.double()"
    )
