"""How the fast engine measures: recorded the first time, proved the second, replayed from then on; folded if it can."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from ..errors import SynflowError
from ..flow.measure import Measurement, measure
from ..flow.passes import DEFAULT, PassOptions
from ..network.private_copy import Network, arguments
from ..pruning.engine import EngineSettings
from ..support.nested import leaves
from .fallbacks import CannotServeError, Fallbacks
from .pass_hooks import FastPass
from .recording import recorded
from .replay import SAME, Gradients, Replay
from .thresholds import Thresholds

Measured = tuple[Measurement, Gradients]


class Measuring:
    """Measurements of one network after another, as it is cut down: `count` of them, `recordings` made so far.

    With `records`, measurements of the usual kind are recorded; with `bounded`, few scores will be multiplied out.
    """

    def __init__(
        self, settings: EngineSettings, thresholds: Thresholds, fallbacks: Fallbacks, records: bool, bounded: bool
    ) -> None:
        self.count = self.recordings = 0
        self.replays = False
        self._settings, self._thresholds, self._fallbacks = settings, thresholds, fallbacks
        self._records, self._bounded = records, bounded
        self._folds = False
        self._replay: Replay | None = None

    def forget(self) -> None:
        """Let the recording go, with the magnitudes that it reads."""
        self._replay, self.replays = None, False

    def weights_come_back(self, recordings: int) -> None:
        """Let a recording go that was made since there were so many: flow may now pass where there was none.

        Flows that were zero everywhere were recorded as zero in sums with others, whatever their exponent.
        """
        if self.recordings > recordings:
            self.forget()

    def usual(self, network: Network, magnitudes: Mapping[str, Tensor]) -> Measured:
        """A measurement with gradients."""
        if self._replay is not None and self.replays:
            self.count += 1
            again = self._replay.run()
            if again is not None:
                return again
            self.forget()
        if not self._records:
            return self.anew(network, magnitudes)
        if self._replay is not None:
            return self._prove(self._replay, network, magnitudes)
        try:
            flow, gradients, replay = recorded(lambda: self.anew(network, magnitudes), magnitudes)
        except SynflowError:
            raise
        except Exception as cause:  # torch may refuse to be watched; what else is wrong shows in the plain measurement
            self._stop_recording(cause)
            return self.anew(network, magnitudes)
        if isinstance(replay, Replay):
            self._replay = replay
            self.recordings += 1
        elif flow.value > 0:
            self._stop_recording(replay)
        return flow, gradients

    def _prove(self, replay: Replay, network: Network, magnitudes: Mapping[str, Tensor]) -> Measured:
        """Measure weights that have changed since the recording, and compare with what the recording makes of them."""
        flow, gradients = self.anew(network, magnitudes)
        self.replays = replay.agrees_with(flow, gradients)
        if not self.replays:
            self._stop_recording(RuntimeError("its replay differs from a new measurement"))
        return flow, gradients

    def _stop_recording(self, cause: Exception) -> None:
        self.forget()
        self._records = False
        self._fallbacks.add("recording", cause)

    def anew(
        self, network: Network, magnitudes: Mapping[str, Tensor], options: PassOptions = DEFAULT, gradients: bool = True
    ) -> Measured:
        """A measurement by a pass through the network."""
        self.count += 1
        memory = network.constants if self._folds and options == DEFAULT else None
        hooks = FastPass(self._thresholds, memory, bounded=self._bounded)
        flow = measure(
            network, magnitudes=magnitudes, power=self._settings.power, options=options,
            gradients=gradients, hooks=hooks,
        )  # fmt: skip
        return flow, hooks.gradients

    def log2(self, network: Network, magnitudes: Mapping[str, Tensor]) -> float:
        """log2 of the flow, without gradients."""
        return self._replay.log2() if self._replay else self.anew(network, magnitudes, gradients=False)[0].log2

    def try_to_fold(self, network: Network, magnitudes: Mapping[str, Tensor]) -> Measured | None:
        """Fold positions with identical receptive fields, if the flow stays the same: worth it for large images."""
        images = [leaf for leaf in leaves(arguments(network.example)) if isinstance(leaf, Tensor) and leaf.dim() == 4]
        pixels = max((image.shape[2] * image.shape[3] for image in images), default=0)
        if pixels < self._thresholds.fold_from_pixels or (self._settings.steps or math.inf) < 2:
            return None
        plain = self.anew(network, magnitudes, gradients=False)[0].log2
        self._folds = True
        try:
            folded = self.usual(network, magnitudes)
            check_same_flow(plain, folded[0].log2)
        except Exception as cause:
            self._folds = False
            self.forget()
            inner = cause.__cause__  # what is raised inside of the model comes as the cause of another error
            self._fallbacks.add("folding", inner if isinstance(inner, CannotServeError) else cause)
            return None
        return folded


def check_same_flow(before: float, after: float) -> None:
    """Refuse a form of the network whose flow (by its log2) is another one."""
    if before != after and not math.isclose(before, after, abs_tol=2 * SAME):
        raise CannotServeError(f"the flow changes from 2^{before} to 2^{after}")
