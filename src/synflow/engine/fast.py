"""The fast engine: absolute weights are made once, pruned ones become zero, and measurements are recorded and replayed.

As units die, flow is measured on the network cut down to the live ones, whose tensors hold the same weights in less
memory; masks are mapped back when somebody asks for them.
"""

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
from ..support.ranking import keep_best
from ..support.torch_modes import without_autocast
from .compiled import loops_for_all
from .cut_network import CutNetwork
from .fallbacks import Fallbacks
from .measuring import Measuring, check_same_flow
from .pass_hooks import FastPass, reads_half
from .replay import Gradients
from .scores import FactoredScores
from .select_lightest import lightest_weights, masks_without, put_back, remove
from .step_scores import FastRemoval, FastScores
from .thresholds import current


class FastEngine:
    """The weights that are left (`magnitudes`, in the shapes of the cut network) and the network they are used in.

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
        self._cut = CutNetwork(network, self.count)
        self._loops = loops_for_all(self.magnitudes.values(), self.thresholds.compile_from_weights)
        self._places: dict[str, Tensor] = {}
        self._bounds: dict[str, float] = {}
        records = not self._half and (settings.steps or math.inf) >= self.thresholds.record_from_steps
        self._measuring = Measuring(settings, self.thresholds, self._fallbacks, records, self._loops is not None)
        folded = self._measuring.try_to_fold(network, self.magnitudes)
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
    def measure(self, options: PassOptions = DEFAULT, *, gradients: bool = True, ahead: float = 0) -> FastScores:
        """The flow of what is left, and its scores, which are not held; the network is cut down first if that pays."""
        if ahead > 0:
            self._cut_down(ahead)
        usual = options == DEFAULT and gradients
        if usual and self._last is not None:
            return self._last
        network, magnitudes = self._cut.network, self.magnitudes
        if not usual:
            return self._scores(*self._measuring.anew(network, magnitudes, options, gradients))
        self._last = self._scores(*self._measuring.usual(network, magnitudes))
        return self._last

    @without_autocast
    def lightest(self, scores: FastScores, number: int, budget: float = math.inf) -> FastRemoval:
        """The lightest weights. Those outside of the cut network go first: no flow passes them."""
        idle = self._cut.idle
        if number < idle:
            whole, masks = scores.whole(), self.masks()
            return FastRemoval(number, 0.0, scores, masks=keep_best(whole, masks, self.count - number))
        found = lightest_weights(scores.factored, self.count - idle, number - idle, budget)
        return FastRemoval(found.number + idle, found.total, scores, found)

    @without_autocast
    def weigh(self, removal: FastRemoval, scores: FastScores) -> float:
        """The sum of other scores over a removal."""
        if removal.lightest is None or scores is removal.scores:
            return removal.total
        return scores.factored.total(masks_without(removal.scores.factored, removal.lightest))

    @without_autocast
    def leaves_a_path(self, removal: FastRemoval) -> bool:
        """Whether an input still reaches an output; tried on the weights themselves, which come back."""
        if removal.lightest is None:
            assert removal.masks is not None
            return connected(self.network, removal.masks)
        undo = self.remove(removal)
        try:
            hooks = FastPass(self.thresholds) if self._half else None
            return connected(self._cut.network, self.magnitudes, hooks)
        finally:
            undo()

    @without_autocast
    def remove(self, removal: FastRemoval) -> Callable[[], None]:
        """Remove the lightest weights, and all that lie outside of the cut network."""
        if removal.lightest is None:
            assert removal.masks is not None
            return self._undoable(lambda: self.keep_only(removal.masks or {}))
        scores, found = removal.scores.factored, removal.lightest
        if found.pieces is not None:
            come_back = self._coming_back()
            remove(scores, found)

            def undo() -> None:
                put_back(scores, found, self._magnitudes_at)
                come_back()

        else:
            undo = self._undoable(lambda: remove(scores, found))
        self.count -= removal.number
        self._last, self._cut.outside = None, {}
        return undo

    def removal(self, masks: Mapping[str, Tensor], scores: FastScores) -> FastRemoval:
        """The removal that leaves the given masks of the whole network."""
        total = scores.factored.total(self._cut.parts(masks))
        return FastRemoval(self.count - count(masks), total, scores, masks=dict(masks))

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
        flow, gradients = self._measuring.anew(self._cut.network, self.magnitudes, BOOLEANS)
        reached = flow.value > 0 and flow.input_reached
        flows = {name: part.flow for name, part in gradients.items() if reached and part.flow is not None}
        self._alive = frozenset(name for name, flow in flows.items() if float(flow) > 0)
        return self._alive

    def keep_only(self, masks: Mapping[str, Tensor]) -> None:
        """Go on with other masks of the whole network, which keep nothing that was pruned."""
        for name, part in self._cut.parts(masks).items():
            if name in self.kept_zeros:
                self.kept_zeros[name].copy_(part)
            self.magnitudes[name].masked_fill_(part.logical_not(), 0.0)
        self._cut.keep_only(masks)
        self.count, self._last = count(masks), None

    def masks(self) -> dict[str, Tensor]:
        """The masks of the whole network, in tensors of their own."""
        full = self.network_shapes(self._all_kept())
        full |= {name: mask.clone() for name, mask in self.kept_zeros.items() if name not in self._cut.index_maps}
        for name, positions in self._cut.outside.items():
            full[name].view(-1)[positions] = True
        return full

    def network_shapes(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the cut network (masks, scores) in the shapes of the whole one, zero where nothing is left."""
        return self._cut.widened(tensors)

    def _undoable(self, change: Callable[[], None]) -> Callable[[], None]:
        """Make a change; what is returned makes the weights again from the user's and the masks of before."""
        masks, come_back = self.masks(), self._coming_back()
        change()

        def undo() -> None:
            parts = self._cut.parts(masks)
            fresh = self._made_again(parts)
            for name, magnitude in self.magnitudes.items():
                magnitude.copy_(fresh[name])
                if name in self.kept_zeros:
                    self.kept_zeros[name].copy_(parts[name])
            come_back()

        return undo

    def _coming_back(self) -> Callable[[], None]:
        """What else is to be done when the weights of now are there again."""
        before, recordings = (self.count, self._last, self._cut.outside, self._alive), self._measuring.recordings

        def come_back() -> None:
            self.count, self._last, self._cut.outside, self._alive = before
            self._measuring.weights_come_back(recordings)

        return come_back

    def _made_again(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The magnitudes that masks of the cut network leave, made from the user's weights."""
        parts = self._cut.parts(absolute(self.network, None, self.settings.power, half=self._half))
        return {name: part.masked_fill_(masks[name].logical_not(), 0.0) for name, part in parts.items()}

    def _magnitudes_at(self, name: str, places: Tensor) -> Tensor:
        """What the weights of some places in the cut network were, pruned or not: made again from the user's."""
        weight = self.network.weights[name].detach()
        whole = self._cut.index_maps[name].at(places) if name in self._cut.index_maps else places
        values = weight.reshape(-1)[whole].to(self.magnitudes[name].dtype).abs()
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
        scores = FastScores(flow, factored, self.network_shapes)
        if balanced:
            factored.scales.update(balancing({**scores.layer_flows, **factored.root_sums()}, flow.value, cuts))
        return scores

    def _all_kept(self) -> dict[str, Tensor]:
        """The masks of the cut network."""
        return {name: self.kept_zeros.get(name, magnitude != 0) for name, magnitude in self.magnitudes.items()}

    def _keeps_zeros(self, name: str, mask: Tensor) -> bool:
        magnitude = self.magnitudes[name]
        if not magnitude.numel() or bool(magnitude.amin() > 0):
            return False
        return count_true(mask) > int(torch.count_nonzero(magnitude))

    def _cut_down(self, ahead: float) -> None:
        """Cut the network down to the units that are alive, where enough has gone and enough steps lie ahead."""
        cut = self._cut
        enough = cut.share_to_leave(self._all_kept, self.count, ahead, self.thresholds)
        if enough is None:
            return
        before = self._measuring.log2(cut.network, self.magnitudes)
        problem: Exception | None = None
        # Most networks run once they are cut; for the others, reshaped units such as heads are left whole.
        for check in (False, True):
            try:
                masks = self._all_kept()
                self._continue_in(cut.smaller(self.magnitudes, masks, enough, check), masks, before)
                return
            except Exception as cause:
                problem = cause
        assert problem is not None
        cut.possible = False
        self._fallbacks.add("cutting down", problem)

    def _continue_in(self, cut: CutNetwork | None, masks: dict[str, Tensor], before: float) -> None:
        """Go on in a smaller network, if its flow is that of the present one, which masks tell how to make again.

        The present magnitudes are let go one by one, so that both networks are never in memory as a whole.
        """
        if cut is None:
            self._cut.look_again_soon(self.count, self.thresholds)
            return
        known = (self._cut, self.kept_zeros)
        self._measuring.forget()
        self._last = None
        self._cut, self._places, self.kept_zeros = cut, {}, cut.cut_tensors(dict(self.kept_zeros))
        self.magnitudes = cut.cut_tensors(self.magnitudes)
        try:
            flow, gradients = self._measuring.usual(cut.network, self.magnitudes)
            check_same_flow(before, flow.log2)
        except BaseException:
            self._measuring.forget()
            self._cut, self.kept_zeros = known
            self.magnitudes = self._made_again(masks)
            raise
        self._last = self._scores(flow, gradients)
