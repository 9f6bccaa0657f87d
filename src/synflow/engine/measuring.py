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
    """Measurements of the weights that are left: `count` of them; `recording` is what replays are made from.

    With `records`, measurements of the usual kind are recorded; with `bounded`, few scores will be multiplied out.
    """

    def __init__(
        self, network: Network, magnitudes: Mapping[str, Tensor], settings: EngineSettings, thresholds: Thresholds,
        fallbacks: Fallbacks, records: bool, bounded: bool,
    ) -> None:  # fmt: skip
        self.count = 0
        self.recording: Replay | None = None
        self.replays = False  # whether the recording has proved itself
        self._network, self._magnitudes, self._settings = network, magnitudes, settings
        self._thresholds, self._fallbacks = thresholds, fallbacks
        self._records, self._bounded, self._folds = records, bounded, False

    def weights_came_back(self, recording: Replay | None) -> None:
        """Drop a recording that was made since a removal that is now undone: flow may pass where there was none.

        Flows that were zero everywhere were recorded as zero in sums with others, whatever their exponent.
        """
        if self.recording is not recording:
            self._forget()

    def usual(self) -> Measured:
        """A measurement with gradients."""
        if self.recording is not None and self.replays:
            self.count += 1
            again = self.recording.run()
            if again is not None:
                return again
            self._forget()
        if not self._records:
            return self.anew()
        if self.recording is not None:
            return self._prove(self.recording)
        try:
            flow, gradients, replay = recorded(self.anew, self._magnitudes)
        except SynflowError:
            raise
        except Exception as cause:  # torch may refuse to be watched; what else is wrong shows in the plain measurement
            self._stop_recording(cause)
            return self.anew()
        if isinstance(replay, Replay):
            self.recording = replay
        elif flow.value > 0:
            self._stop_recording(replay)
        return flow, gradients

    def _prove(self, replay: Replay) -> Measured:
        """Measure weights that have changed since the recording, and compare with what the recording makes of them."""
        flow, gradients = self.anew()
        self.replays = replay.agrees_with(flow, gradients)
        if not self.replays:
            self._stop_recording(RuntimeError("its replay differs from a new measurement"))
        return flow, gradients

    def _forget(self) -> None:
        self.recording, self.replays = None, False

    def _stop_recording(self, cause: Exception) -> None:
        self._forget()
        self._records = False
        self._fallbacks.add("recording", cause)

    def anew(self, options: PassOptions = DEFAULT, gradients: bool = True) -> Measured:
        """A measurement by a pass through the network."""
        self.count += 1
        memory = self._network.constants if self._folds and options == DEFAULT else None
        hooks = FastPass(self._thresholds, memory, bounded=self._bounded)
        flow = measure(
            self._network, magnitudes=self._magnitudes, power=self._settings.power, options=options,
            gradients=gradients, hooks=hooks,
        )  # fmt: skip
        return flow, hooks.gradients

    def try_to_fold(self) -> Measured | None:
        """Fold positions with identical receptive fields, if the flow stays the same: worth it for large images."""
        example = leaves(arguments(self._network.example))
        images = [leaf for leaf in example if isinstance(leaf, Tensor) and leaf.dim() == 4]
        pixels = max((image.shape[2] * image.shape[3] for image in images), default=0)
        if pixels < self._thresholds.fold_from_pixels or (self._settings.steps or math.inf) < 2:
            return None
        plain = self.anew(gradients=False)[0].log2
        self._folds = True
        try:
            folded = self.usual()
            if folded[0].log2 != plain and not math.isclose(folded[0].log2, plain, abs_tol=2 * SAME):
                raise CannotServeError(f"the flow changes from 2^{plain} to 2^{folded[0].log2}")
        except Exception as cause:
            self._folds = False
            self._forget()
            inner = cause.__cause__  # what is raised inside of the model comes as the cause of another error
            self._fallbacks.add("folding", inner if isinstance(inner, CannotServeError) else cause)
            return None
        return folded
