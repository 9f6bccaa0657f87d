"""The fast engine: absolute weights are made once, pruned ones become zero, measurements are recorded and replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from ..flow.measure import Measurement, absolute
from ..flow.passes import DEFAULT, PassOptions
from ..flow.paths import BOOLEANS, connected
from ..network.private_copy import Network
from ..pruning.engine import EngineSettings, balancing
from ..support.chunked import count, count_true
from ..support.torch_modes import without_autocast
from .compiled import loops_for_all
from .fallbacks import Fallbacks
from .measuring import Measuring
from .pass_hooks import FastPass, reads_half
from .replay import Gradients
from .scores import FactoredScores
from .select_lightest import Lightest, lightest_weights, masks_without, put_back, remove
from .thresholds import current


@dataclass(frozen=True)
class FastScores:
    """The scores of one step, multiplied out only when they are asked for."""

    flow: Measurement
    factored: FactoredScores

    @cached_property
    def layer_flows(self) -> Mapping[str, float]:
        """The flow of each layer: the sum of its scores, before they are balanced."""
        flows = {name: gradient.flow for name, gradient in self.factored.gradients.items()}
        return {name: 0.0 if flow is None else float(flow) for name, flow in flows.items()}

    def whole(self) -> dict[str, Tensor]:
        """All scores, in the shapes of the weights."""
        return self.factored.whole()


@dataclass(frozen=True)
class FastRemoval:
    """The lightest weights, as found among the scores of one step; or, where masks were given, the masks that stay."""

    number: int
    total: float
    scores: FastScores
    lightest: Lightest | None = None
    masks: Mapping[str, Tensor] | None = None


class FastEngine:
    """The weights that are left: `magnitudes`, one tensor per layer, zero where a weight was pruned.

    A weight is kept if its magnitude is non-zero; tensors that keep zeros have an explicit mask in `kept_zeros`.
    """

    name = "fast"

    def __init__(self, network: Network, masks: Mapping[str, Tensor], settings: EngineSettings) -> None:
        self.network, self.settings, self.thresholds = network, settings, current()
        self._fallbacks = Fallbacks()
        self._half = settings.power == 1 and reads_half(network, masks, self.thresholds, self._fallbacks)
        self.magnitudes = absolute(network, masks, settings.power, half=self._half)
        self.kept_zeros = {name: mask.clone() for name, mask in masks.items() if self._keeps_zeros(name, mask)}
        self.count = count(masks)
        self._loops = loops_for_all(self.magnitudes.values(), self.thresholds.compile_from_weights)
        self._places: dict[str, Tensor] = {}
        self._bounds: dict[str, float] = {}
        records = not self._half and (settings.steps or math.inf) >= self.thresholds.record_from_steps
        self._measuring = Measuring(
            network, self.magnitudes, settings, self.thresholds, self._fallbacks, records, self._loops is not None
        )
        folded = self._measuring.try_to_fold()
        self._last: FastScores | None = None if folded is None else self._scores(*folded)
        self._alive = frozenset(self.magnitudes)  # the layers that were last found alive
        self._starts_beside = False  # whether something beside the inputs was found to start a flow

    @property
    def measurements(self) -> int:
        """How often the flow was measured."""
        return self._measuring.count

    @property
    def fallbacks(self) -> Mapping[str, str]:
        """The parts of the engine that were switched off, and why."""
        return self._fallbacks.reasons

    @without_autocast
    def measure(self, options: PassOptions = DEFAULT, *, gradients: bool = True) -> FastScores:
        """The flow of what is left, and its scores, which are not held."""
        if options != DEFAULT or not gradients:
            return self._scores(*self._measuring.anew(options, gradients))
        if self._last is None:
            self._last = self._scores(*self._measuring.usual())
        return self._last

    @without_autocast
    def lightest(self, scores: FastScores, number: int, budget: float = math.inf) -> FastRemoval:
        """The lightest weights, those that no flow passes first; later positions first among equals."""
        found = lightest_weights(scores.factored, self.count, number, budget)
        return FastRemoval(found.number, found.total, scores, found)

    @without_autocast
    def weigh(self, removal: FastRemoval, scores: FastScores) -> float:
        """The sum of other scores over a removal."""
        if removal.lightest is None or scores is removal.scores:
            return removal.total
        return scores.factored.total(masks_without(removal.scores.factored, removal.lightest))

    @without_autocast
    def leaves_a_path(self, removal: FastRemoval) -> bool:
        """Whether an input still reaches an output; tried on the weights themselves, which come back."""
        undo = self.remove(removal)
        try:
            return connected(self.network, self.magnitudes, FastPass(self.thresholds) if self._half else None)
        finally:
            undo()

    @without_autocast
    def remove(self, removal: FastRemoval) -> Callable[[], None]:
        """Remove weights; what is returned makes them again from the user's."""
        before, recording = (self.count, self._last, self._alive), self._measuring.recording
        scores, found = removal.scores.factored, removal.lightest
        if found is not None and found.pieces is not None:
            remove(scores, found)
            weights_back = partial(put_back, scores, found, self._magnitudes_at)
        else:
            weights_back = partial(self._make_again, self.masks())
            if found is not None:
                remove(scores, found)
            else:
                assert removal.masks is not None
                self.keep_only(removal.masks)
        self.count, self._last = before[0] - removal.number, None

        def undo() -> None:
            weights_back()
            self.count, self._last, self._alive = before
            self._measuring.weights_came_back(recording)

        return undo

    def removal(self, masks: Mapping[str, Tensor], scores: FastScores) -> FastRemoval:
        """The removal that leaves the given masks."""
        return FastRemoval(self.count - count(masks), scores.factored.total(masks), scores, masks=dict(masks))

    @without_autocast
    def live_layers(self) -> frozenset[str]:
        """The layers that have a weight on a path from an input to an output.

        Where only inputs start a flow that weights meet, these are the layers that have any, unless a flow has
        underflowed: that is ruled out if no layer has died since the last answer. Else, paths are followed in the
        booleans.
        """
        if not self._starts_beside:
            scores = self.measure()
            self._starts_beside = scores.flow.shifts_met or scores.flow.loose
            alive = frozenset(name for name, flow in scores.layer_flows.items() if flow > 0)
            if not self._starts_beside and alive == self._alive:
                return alive
        flow, gradients = self._measuring.anew(BOOLEANS)
        reached = flow.value > 0 and flow.input_reached
        flows = {name: part.flow for name, part in gradients.items() if reached and part.flow is not None}
        self._alive = frozenset(name for name, flow in flows.items() if float(flow) > 0)
        return self._alive

    def keep_only(self, masks: Mapping[str, Tensor]) -> None:
        """Go on with other masks, which keep nothing that was pruned."""
        for name, magnitude in self.magnitudes.items():
            magnitude.masked_fill_(masks[name].logical_not(), 0.0)
            if name in self.kept_zeros:
                self.kept_zeros[name].copy_(masks[name])
        self.count, self._last = count(masks), None

    def masks(self) -> dict[str, Tensor]:
        """The masks, in tensors of their own."""
        zeros = self.kept_zeros
        return {name: zeros[name].clone() if name in zeros else size != 0 for name, size in self.magnitudes.items()}

    def _make_again(self, masks: Mapping[str, Tensor]) -> None:
        """Put back the weights that masks keep, made from the user's."""
        for name, mask in masks.items():
            fresh = absolute(self.network, masks, self.settings.power, half=self._half, only=[name])
            self.magnitudes[name].copy_(fresh[name])
            if name in self.kept_zeros:
                self.kept_zeros[name].copy_(mask)

    def _magnitudes_at(self, name: str, places: Tensor) -> Tensor:
        """What the weights of some places were, pruned or not: made again from the user's."""
        weight = self.network.weights[name].detach()
        values = weight.reshape(-1)[places].to(self.magnitudes[name].dtype).abs()
        if not bool(values.any()) and not bool(weight.any()):
            return torch.ones_like(values)  # a tensor that is zero everywhere counts as ones
        return values.pow_(self.settings.power) if self.settings.power != 1 else values

    def _scores(self, flow: Measurement, gradients: Gradients) -> FastScores:
        balanced, cuts = self.settings.balanced, self.settings.cuts
        roots = frozenset(self.magnitudes) - cuts if self.settings.spread and gradients else frozenset()
        factored = FactoredScores(
            self.magnitudes, self.kept_zeros, gradients, self.thresholds, self._loops, roots, {}, self._places,
            self._bounds,
        )  # fmt: skip
        scores = FastScores(flow, factored)
        if balanced:
            factored.scales.update(balancing({**scores.layer_flows, **factored.root_sums()}, flow.value, cuts))
        return scores

    def _keeps_zeros(self, name: str, mask: Tensor) -> bool:
        magnitude = self.magnitudes[name]
        if not magnitude.numel() or bool(magnitude.amin() > 0):
            return False
        return count_true(mask) > int(torch.count_nonzero(magnitude))
