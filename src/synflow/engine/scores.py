"""Scores that are not held: S = |w| dR/d|w| multiplied out a block at a time from factored gradients.

In tensors of `roots` the root of the gradient takes its place: S = |w| sqrt(dR/d|w|).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..flow.measure import Measurement, not_finite
from .factored_gradient import THIN, FactoredGradient, Factors
from .thresholds import Thresholds

# No product of a magnitude and a gradient below this overflows float32.
HUGE = 1e37
# With at most this many positions a compiled loop sums scores with roots faster than products of matrices do.
FEW_POSITIONS = 16


@dataclass(frozen=True)
class FactoredScores:
    """The flow of one step, and the scores of the kept weights, multiplied out only when they are asked for.

    A weight is kept if its magnitude is non-zero; tensors that keep zeros have an explicit mask in `masks`. `scales`
    multiplies the scores of whole tensors (one where a tensor is not named). `roots` are the tensors whose scores take
    the root of the gradient. `loops` are the compiled loops, or None.
    `places` is where the last sample was taken and `bounds` a bound on the magnitudes of each tensor: both carry over
    from step to step.
    """

    flow: Measurement
    magnitudes: dict[str, Tensor]
    masks: dict[str, Tensor]
    gradients: dict[str, FactoredGradient]
    thresholds: Thresholds
    loops: Any = None
    roots: frozenset[str] = frozenset()
    scales: dict[str, float] = field(default_factory=dict)
    places: dict[str, Tensor] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    _factors: dict[str, list[Factors]] = field(default_factory=dict)
    _pairs: dict[str, tuple[np.ndarray, np.ndarray] | None] = field(default_factory=dict)

    @cached_property
    def layer_flows(self) -> Mapping[str, float]:
        """The flow of each layer: the sum of its scores, before they are balanced."""
        flows = {name: gradient.flow for name, gradient in self.gradients.items()}
        return {name: 0.0 if flow is None else float(flow) for name, flow in flows.items()}

    def scale(self, name: str) -> float:
        """The factor of one tensor's scores."""
        return self.scales.get(name, 1.0)

    def kept(self, name: str) -> Tensor:
        """The mask of one tensor."""
        return self.masks[name] if name in self.masks else self.magnitudes[name] != 0

    def whole(self) -> dict[str, Tensor]:
        """All scores, held, in the shapes of the weights."""
        scores = {}
        for name, magnitude in self.magnitudes.items():
            dtype = torch.float64 if magnitude.dtype == torch.float64 else torch.float32
            scores[name] = torch.empty(magnitude.shape, dtype=dtype, device=magnitude.device)
            rows = scores[name].view(self.gradients[name].rows, -1)
            for start, stop, block in self.blocks(name):
                rows[start:stop] = block
        return scores

    def blocks(self, name: str) -> Iterator[tuple[int, int, Tensor]]:
        """Scores of one tensor as (first row, last row, block); a block is overwritten by the next."""
        gradient, magnitude, scale = self.gradients[name], self.magnitudes[name], self.scale(name)
        rows, bounded = magnitude.reshape(gradient.rows, gradient.columns), self.cannot_overflow(name)
        for start, stop, block in gradient.blocks(self.factors(name), self.thresholds.block, magnitude):
            if name in self.roots:
                block.sqrt_()
            block.mul_(rows[start:stop])
            if scale != 1.0:
                block.mul_(scale)
            # Scores are not negative, so one sum finds any that is not finite.
            if not bounded and not math.isfinite(float(block.sum())):
                raise not_finite(name, block)
            yield start, stop, block

    def kept_blocks(self, name: str) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The same, flat, as (first position, mask, block)."""
        rows = self.gradients[name].rows
        kept = (self.masks if name in self.masks else self.magnitudes)[name].reshape(rows, -1)
        for start, stop, block in self.blocks(name):
            flags = kept[start:stop].reshape(-1)
            yield start * kept.shape[1], flags if name in self.masks else flags != 0, block.view(-1)

    def total(self, places: Mapping[str, Tensor]) -> float:
        """The sum of the scores at some places: flat positions, or a mask, of each tensor."""
        sums = []
        for name, some in places.items():
            flags = fill(torch.zeros_like(self.magnitudes[name], dtype=torch.bool), some, True)
            rows = flags.view(self.gradients[name].rows, -1)
            for start, stop, block in self.blocks(name):
                sums.append(float(block[rows[start:stop]].sum(dtype=torch.float64)))
        return math.fsum(sums)

    def root_sums(self) -> dict[str, float]:
        """The sums of the scores of the tensors in `roots`."""
        sums, tasks = {}, {}
        for name in (name for name in self.magnitudes if name in self.roots):
            pair = self.pair(name) if self.loops is not None else None
            if pair is not None and pair[0].shape[1] <= FEW_POSITIONS:
                weights = self.magnitudes[name].reshape(self.gradients[name].rows, -1).numpy()
                tasks[name] = partial(self.loops.sum_of_roots, weights, pair[0], np.ascontiguousarray(pair[1].T))
            else:
                sums[name] = math.fsum(float(block.sum(dtype=torch.float64)) for _, _, block in self.blocks(name))
        found = self.loops.side_by_side(list(tasks.values())) if tasks else []
        return sums | {name: float(total) for name, total in zip(tasks, found, strict=True)}

    def sample(self, total: int) -> np.ndarray:
        """Sorted scores of some kept weights, each as likely to be among them as any other.

        The positions are remembered from step to step: what is left of a fair sample is a fair sample of what is left.
        """
        places, most = self.places, self.thresholds.sample
        for name in places:
            places[name] = self._still_kept(name, places[name])
        size = min(most, max(total // 64, most // 8))
        if sum(map(len, places.values())) < min(total, size // 2):
            places.update(self._draw(min(1.0, size / total)))
        tasks = [partial(self.at, name, here) for name, here in places.items() if len(here)]
        parts = [task() for task in tasks] if self.loops is None else self.loops.side_by_side(tasks)
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0)

    def at(self, name: str, positions: Tensor) -> np.ndarray:
        """Scores of one tensor at some flat positions."""
        weight, scale = self.magnitudes[name].reshape(-1), self.scale(name)
        pair = self.pair(name) if self.loops is not None else None
        if pair is None:
            found = self.gradients[name].at(self.factors(name), positions)
            found = (found.sqrt() if name in self.roots else found) * weight[positions]
            return found.mul_(scale).cpu().numpy() if scale != 1.0 else found.cpu().numpy()
        values = np.empty(len(positions), pair[0].dtype)
        self.loops.products_at(positions.numpy(), *pair, weight.numpy(), name in self.roots, values)
        return values if scale == 1.0 else values * values.dtype.type(scale)

    def cannot_overflow(self, name: str) -> bool:
        """Whether a bound shows that every score of a tensor is finite."""
        largest = self.gradients[name].largest(self.factors(name)) * self.largest_magnitude(name)
        return largest < HUGE and largest * self.scale(name) < HUGE

    def largest_magnitude(self, name: str) -> float:
        """A bound on the magnitudes of one tensor: its largest when it was first asked for."""
        if name not in self.bounds:
            self.bounds[name] = float(self.magnitudes[name].amax()) if self.magnitudes[name].numel() else 0.0
        return self.bounds[name]

    def factors(self, name: str) -> list[Factors]:
        """The thin matrices of one tensor, made once."""
        if name not in self._factors:
            self._factors[name] = self.gradients[name].factors()
        return self._factors[name]

    def pair(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """The gradient of one tensor as `left @ seen.T`, for compiled loops; None where it is not one such product."""
        if name not in self._pairs:
            uses, kind = self.gradients[name].factors(), self.magnitudes[name].dtype
            inner = sum(left.shape[1] for left, _ in uses)
            serve = self.gradients[name].dense is None and all(part.dtype == kind for use in uses for part in use)
            self._pairs[name] = None
            if serve and 0 < inner <= THIN:
                left, seen = uses[0][0], uses[0][1].t()
                if len(uses) > 1:
                    left, seen = torch.cat([use[0] for use in uses], 1), torch.cat([use[1].t() for use in uses], 1)
                self._pairs[name] = (left.contiguous().numpy(), seen.contiguous().numpy())
        return self._pairs[name]

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
        if there.dtype == torch.bfloat16:  # NumPy has none; a number that is not negative is zero if its bits are
            there = there.view(torch.int16)
        flat = as_array(positions)
        return torch.from_numpy(flat[as_array(there)[flat] != 0]).to(positions.device)


def fill(tensor: Tensor, places: Tensor, value: float) -> Tensor:
    """Write a value at some places of a tensor: flat positions, or a mask."""
    if places.dtype == torch.bool:
        return tensor.masked_fill_(places, value)
    tensor.view(-1).index_fill_(0, places.long(), value)
    return tensor


def as_array(tensor: Tensor) -> np.ndarray:
    """A tensor for NumPy; on a processor it is not copied."""
    array: np.ndarray = tensor.cpu().numpy()
    return array
