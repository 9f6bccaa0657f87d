"""The lightest weights of a network, found while scores are made a block at a time and thrown away again.

A sample of scores gives a limit below which a few more than the wanted number lie; one pass keeps what is below it;
an exact selection among those few follows. Counts and gathered values add up over tensors, so over shards as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SynflowError
from .candidate_passes import (
    HUGE,
    Found,
    Piece,
    at_edge,
    at_edge_of,
    clear,
    find_between,
    find_light,
    keep,
    not_below,
    scores_at,
)
from .factored_gradient import THIN, Factors, Sensitivity
from .threshold_guess import Trend

# A block of scores and its flags stay in the caches of most processors.
BLOCK = 1 << 19
SAMPLE = 1 << 14
# Beyond this share of the weights, or this many, lists of their positions take more room than is worth it.
SHARE = 1 / 8
MANY = 1 << 24


@dataclass(frozen=True)
class Scored:
    """Scores that are not held: S = |w| dR/d|w| by magnitudes and sensitivities, for the weights that are kept.

    Kept are those that are not zero; of tensors in which zeros are kept as well there are `masks`.

    `places` are where the last sample was taken, `bounds` no less than the magnitudes of each tensor, `trend` where
    edges were found: all may be kept from step to step. `compiled` are loops that find light scores, `flow` is what the
    scores of a layer sum to, `found` are light ones that were looked for before.
    """

    magnitudes: dict[str, Tensor]
    masks: dict[str, Tensor]
    sensitivities: dict[str, Sensitivity]
    places: dict[str, Tensor] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    trend: Trend = field(default_factory=Trend)
    compiled: Any = None
    flow: float = 1.0
    found: Found | None = None
    _factors: dict[str, list[Factors]] = field(default_factory=dict)
    _pairs: dict[str, tuple[np.ndarray, np.ndarray] | None] = field(default_factory=dict)

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
        rows, bounded = magnitude.reshape(sensitivity.rows, sensitivity.columns), self.bounded(name)
        for start, stop, block in sensitivity.blocks(self.factors(name), BLOCK, magnitude):
            block.mul_(rows[start:stop])
            # Scores are not negative, so one sum finds any that is not finite.
            if not bounded and not math.isfinite(float(block.sum())):
                raise not_finite(name, block)
            yield start, stop, block

    def kept_blocks(self, name: str) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The same, flat, as (first position, mask, block)."""
        rows = self.sensitivities[name].rows
        kept = (self.masks if name in self.masks else self.magnitudes)[name].reshape(rows, -1)
        for start, stop, block in self.blocks(name):
            flags = kept[start:stop].reshape(-1)
            yield start * kept.shape[1], flags if name in self.masks else flags != 0, block.view(-1)

    @property
    def size(self) -> int:
        """How many weights there are, kept or not."""
        return sum(magnitude.numel() for magnitude in self.magnitudes.values())

    def kept(self, name: str) -> Tensor:
        """The mask of one tensor."""
        return self.masks[name] if name in self.masks else self.magnitudes[name] != 0

    def remove(self, going: Lightest) -> None:
        """Take the lightest weights out of masks and magnitudes."""
        self._take_out(going, self.masks, self.magnitudes)

    def take(self, going: Lightest) -> list[Tensor]:
        """Remove the lightest weights where they are listed; with what is returned they can be put back."""
        places = [torch.from_numpy(piece.places).long() for piece in going.pieces or []]
        values = [
            self.magnitudes[piece.name].view(-1)[here.to(self.magnitudes[piece.name].device)]
            for piece, here in zip(going.pieces or [], places, strict=True)
        ]
        self.remove(going)
        return values

    def put_back(self, going: Lightest, values: list[Tensor]) -> None:
        """Undo `take`."""
        for piece, value in zip(going.pieces or [], values, strict=True):
            here = torch.from_numpy(piece.places).long().to(value.device)
            if piece.name in self.masks:
                self.masks[piece.name].view(-1).index_fill_(0, here, True)
            self.magnitudes[piece.name].view(-1).index_copy_(0, here, value)

    def masks_without(self, going: Lightest) -> dict[str, Tensor]:
        """What the masks would be; they stay as they are."""
        masks = {name: self.kept(name).clone() for name in self.magnitudes}
        self._take_out(going, masks, {})
        return masks

    def _take_out(self, going: Lightest, masks: dict[str, Tensor], magnitudes: dict[str, Tensor]) -> None:
        if going.pieces is not None:
            clear(going.pieces, going.edge, masks, magnitudes, self.compiled)
        missing = going.ties
        for name in reversed(self.magnitudes):
            flat = masks[name].view(-1) if name in masks else None
            values = magnitudes[name].view(-1) if name in magnitudes else None
            if going.pieces is not None:
                if not missing:
                    break
                last = at_edge_of(going.pieces, name, going.edge).to(self.magnitudes[name].device)[-missing:]
            else:
                equal = []
                for start, kept, block in self.kept_blocks(name):
                    stop = start + len(kept)
                    equal.append(at_edge(block, kept, going.edge) + start)
                    stays = not_below(block, going.edge)
                    if flat is not None:
                        flat[start:stop].logical_and_(stays)
                    if values is not None:
                        keep(values[start:stop], stays)
                last = torch.cat(equal)[-missing:] if missing else torch.cat(equal)[:0]
            missing -= len(last)
            if flat is not None:
                flat.index_fill_(0, last, False)
            if values is not None:
                values.index_fill_(0, last, 0.0)

    def total(self, staying: Mapping[str, Tensor]) -> float:
        """The sum of the scores of the kept weights that other masks do not keep."""
        sums = []
        for name in self.magnitudes:
            stays = staying[name].reshape(-1)
            for start, kept, block in self.kept_blocks(name):
                gone = kept & ~stays[start : start + len(kept)]
                sums.append(float(block[gone].sum(dtype=torch.float64)))
        return math.fsum(sums)

    def sample(self, total: int) -> np.ndarray:
        """Sorted scores of some kept weights, each as likely to be among them as any other.

        Where they are is remembered from step to step: what is left of a fair sample is a fair sample of what is left.
        """
        places = self.places
        for name in places:
            places[name] = self._still_kept(name, places[name])
        size = min(SAMPLE, max(total // 64, SAMPLE // 8))
        if sum(map(len, places.values())) < min(total, size // 2):
            places.update(self._draw(min(1.0, size / total)))
        tasks = [partial(scores_at, self, name, here) for name, here in places.items() if len(here)]
        parts = [task() for task in tasks] if self.compiled is None else self.compiled.side_by_side(tasks)
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0)

    def _draw(self, part: float) -> Iterator[tuple[str, Tensor]]:
        """Positions of about a part of the kept weights."""
        for index, (name, magnitude) in enumerate(self.magnitudes.items()):
            if part == 1.0:
                yield name, torch.nonzero(self.kept(name).view(-1)).view(-1)
                continue
            dice = torch.Generator().manual_seed(index)
            number = math.ceil(magnitude.numel() * part)
            positions = torch.randint(magnitude.numel(), (number,), generator=dice).to(magnitude.device)
            yield name, self._still_kept(name, positions)

    def _still_kept(self, name: str, positions: Tensor) -> Tensor:
        there = (self.masks if name in self.masks else self.magnitudes)[name].reshape(-1)
        if there.device.type != "cpu" or there.dtype == torch.bfloat16:
            return positions[there[positions] != 0]
        flat = positions.numpy()  # NumPy picks several times faster than torch does on a processor
        return torch.from_numpy(flat[there.numpy()[flat] != 0])

    def largest(self, name: str) -> float:
        """A bound on the magnitudes of one tensor: its largest when it was first asked for."""
        if name not in self.bounds:
            self.bounds[name] = float(self.magnitudes[name].amax()) if self.magnitudes[name].numel() else 0.0
        return self.bounds[name]

    def bounded(self, name: str) -> bool:
        """Whether no score of a tensor can overflow."""
        return self.sensitivities[name].largest(self.factors(name)) * self.largest(name) < HUGE

    def factors(self, name: str) -> list[Factors]:
        """The thin matrices of one tensor, made once."""
        if name not in self._factors:
            self._factors[name] = self.sensitivities[name].factors()
        return self._factors[name]

    def pair(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The gradient of one tensor as `left @ seen.T`, for compiled loops; None where it is not one such product."""
        if name not in self._pairs:
            uses, kind = self.sensitivities[name].factors(), self.magnitudes[name].dtype
            inner = sum(left.shape[1] for left, _ in uses)
            serve = self.sensitivities[name].dense is None and all(part.dtype == kind for use in uses for part in use)
            self._pairs[name] = None
            if serve and 0 < inner <= THIN:
                left, seen = uses[0][0], uses[0][1].t()
                if len(uses) > 1:
                    left, seen = torch.cat([use[0] for use in uses], 1), torch.cat([use[1].t() for use in uses], 1)
                self._pairs[name] = (left.contiguous().numpy(), seen.contiguous().numpy())
        return self._pairs[name]


@dataclass(frozen=True)
class Lightest:
    """The lightest weights: all below the edge, and of those at the edge the `ties` that come last.

    `pieces` hold them, and some more; where they are many they are not held, but found again.
    """

    number: int
    total: float
    edge: float = -math.inf
    ties: int = 0
    pieces: list[Piece] | None = None


def lightest_weights(scored: Scored, total: int, number: int, budget: float = math.inf) -> Lightest:
    """The `number` lightest of `total` kept weights, later positions first among equals.

    Fewer, where the scores of so many would sum to the budget or more.
    """
    if number == 0:
        return Lightest(0, 0.0, pieces=[])
    if budget == math.inf:
        found = scored.found or _guessed(scored, number / total)
        if found is not None:
            values = np.concatenate([piece.values for piece in found.pieces])
            if len(values) >= number:
                return _noted(scored, total, _exactly(found, values, number, listed=True))
    sample = scored.sample(total)
    position = number / total * len(sample)
    if budget < math.inf:
        sums = np.cumsum(sample, dtype=np.float64) * (total / max(len(sample), 1))
        position = min(position, int(np.searchsorted(sums, budget)))
    few = position <= SHARE * len(sample) and position * total <= MANY * len(sample)
    spread = 4.0 * math.sqrt(position) + 4.0
    while True:
        top, bottom = math.ceil(position + spread), math.floor(position - spread)
        high = float(sample[top]) if top < len(sample) else math.inf
        low = -math.inf if few or bottom < 0 else float(sample[bottom])
        found = find_light(scored, high, position / len(sample)) if few else find_between(scored, low, high)
        values = np.concatenate([piece.values for piece in found.pieces])
        gathered = found.below + len(values)
        affordable = gathered
        if budget < math.inf:
            sums = np.cumsum(np.sort(values), dtype=np.float64)
            sums += found.sum_below
            affordable = found.below + int(np.searchsorted(sums, budget))
        wanted = min(number, affordable)
        enough = affordable < gathered or gathered >= number or high == math.inf
        if enough and (wanted > found.below or low == -math.inf):
            return _noted(scored, total, _exactly(found, values, wanted, listed=few))
        spread *= 4


def _guessed(scored: Scored, share: float) -> Found | None:
    """What lies below the edge that is expected; None where nothing is expected."""
    guess = scored.trend.next(share, scored.flow)
    return None if guess is None else find_light(scored, guess, share)


def _noted(scored: Scored, total: int, going: Lightest) -> Lightest:
    """Remember where the edge was, for the next step; lists that would be long are not made by a guess."""
    if going.pieces is not None:
        scored.trend.add(going.number / total, going.edge, scored.flow)
    return going


def _exactly(found: Found, everything: np.ndarray, number: int, listed: bool) -> Lightest:
    """The lightest `number`; of equals at the edge the last ones go, so that earlier ones stay."""
    if number == 0:
        return Lightest(0, 0.0, pieces=[])
    order = number - found.below
    everything.partition(order - 1)
    edge, going = everything[order - 1], everything[:order]
    ties = int(np.count_nonzero(going == edge))
    total = math.fsum([found.sum_below, float(going.sum(dtype=np.float64))])
    return Lightest(number, total, float(edge), ties, found.pieces if listed else None)


def _wide(magnitude: Tensor) -> torch.dtype:
    return torch.float64 if magnitude.dtype == torch.float64 else torch.float32


def not_finite(name: str, scores: Tensor) -> SynflowError:
    """The error for scores that overflowed."""
    bad = int((~torch.isfinite(scores)).sum())
    return SynflowError(
        f"{name}: {bad} of {scores.numel()} flow scores are not finite; a weight or statistic is extreme "
        "(below 1e-38 or above 1e38): rescale it, or score in float64 with model.double()"
    )
