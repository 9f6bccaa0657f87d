"""The fast engine: absolute weights are made once, pruned ones become zero, measurements are recorded and replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

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
from .scores import FactoredScores, fill
from .select_lightest import FastRemoval, lightest_weights
from .thresholds import current


class FastEngine:
    """The weights that are left: `magnitudes`, one tensor per layer, zero where a weight was pruned.

    A weight is kept if its magnitude is non-zero; tensors that keep zeros have an explicit mask in `kept_zeros`.
    `Engine` says what each method does.
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
        self._last: FactoredScores | None = None if folded is None else self._scores(*folded)
        self._alive = frozenset(self.magnitudes)  # the layers that were last found alive
        self._starts_beside = False  # whether something beside the inputs was found to start a flow

    @property
    def measurements(self) -> int:
        return self._measuring.count

    @property
    def fallbacks(self) -> Mapping[str, str]:
        return self._fallbacks.reasons

    @without_autocast
    def measure(self, options: PassOptions = DEFAULT, *, gradients: bool = True) -> FactoredScores:
        """The flow of the remaining weights; their scores are computed only when they are asked for."""
        if options != DEFAULT or not gradients:
            return self._scores(*self._measuring.anew(options, gradients))
        if self._last is None:
            self._last = self._scores(*self._measuring.usual())
        return self._last

    @without_autocast
    def lightest(self, scores: FactoredScores, number: int, budget: float = math.inf) -> FastRemoval:
        """The lightest weights, those that no flow passes first; later positions first among equals."""
        return lightest_weights(scores, self.count, number, budget)

    @without_autocast
    def weigh(self, removal: FastRemoval, scores: FactoredScores) -> float:
        return removal.total if scores is removal.scores else scores.total(removal.gone)

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
        """Remove weights; returns a function that makes them again from the user's weights."""
        before, recording = (self.count, self._last, self._alive), self._measuring.recording
        for name, places in removal.gone.items():
            fill(self.magnitudes[name], places, 0)
            if name in self.kept_zeros:
                fill(self.kept_zeros[name], places, False)
        self.count, self._last = self.count - removal.number, None

        def undo() -> None:
            for name, places in removal.gone.items():
                self._put_back(name, places)
            self.count, self._last, self._alive = before
            self._measuring.weights_came_back(recording)

        return undo

    def removal(self, masks: Mapping[str, Tensor], scores: FactoredScores) -> FastRemoval:
        gone = {name: scores.kept(name).logical_and(masks[name].logical_not()) for name in self.magnitudes}
        return FastRemoval(count(gone), scores.total(gone), scores, gone)

    @without_autocast
    def live_layers(self) -> frozenset[str]:
        """By layer flows or by paths.

        Where only inputs start a flow that weights meet, these are the layers that have any, unless a flow has
        underflowed: that is ruled out if no layer has died since the last answer. Else, paths are followed in boolean
        arithmetic.
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
        for name, magnitude in self.magnitudes.items():
            magnitude.masked_fill_(masks[name].logical_not(), 0.0)
            if name in self.kept_zeros:
                self.kept_zeros[name].copy_(masks[name])
        self.count, self._last = count(masks), None

    def masks(self) -> dict[str, Tensor]:
        zeros = self.kept_zeros
        return {name: zeros[name].clone() if name in zeros else size != 0 for name, size in self.magnitudes.items()}

    def _put_back(self, name: str, places: Tensor) -> None:
        """Make weights of one tensor again from the user's: at flat positions, or those of a mask."""
        magnitude, weight = self.magnitudes[name], self.network.weights[name].detach()
        if name in self.kept_zeros:
            fill(self.kept_zeros[name], places, True)
        if places.dtype == torch.bool:
            fresh = absolute(self.network, None, self.settings.power, half=self._half, only=[name])[name]
            magnitude.copy_(torch.where(places, fresh, magnitude))
            return
        values = weight.reshape(-1)[places.long()].to(magnitude.dtype).abs().pow_(self.settings.power)
        if not bool(values.any()) and not bool(weight.any()):
            values.fill_(1.0)  # a tensor that is zero everywhere counts as ones
        magnitude.view(-1).index_copy_(0, places.long(), values)

    def _scores(self, flow: Measurement, gradients: Gradients) -> FactoredScores:
        balanced, cuts = self.settings.balanced, self.settings.cuts
        roots = frozenset(self.magnitudes) - cuts if self.settings.spread and gradients else frozenset()
        scores = FactoredScores(
            flow, self.magnitudes, self.kept_zeros, gradients, self.thresholds, self._loops, roots,
            places=self._places, bounds=self._bounds,
        )  # fmt: skip
        if balanced:
            scores.scales.update(balancing({**scores.layer_flows, **scores.root_sums()}, flow, cuts))
        return scores

    def _keeps_zeros(self, name: str, mask: Tensor) -> bool:
        magnitude = self.magnitudes[name]
        if not magnitude.numel() or bool(magnitude.amin() > 0):
            return False
        return count_true(mask) > int(torch.count_nonzero(magnitude))
