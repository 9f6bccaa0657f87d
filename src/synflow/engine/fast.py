"""The weights that are left while pruning goes on, and the part of the network that they still need.

Absolute weights are made once; what is pruned becomes zero in place. As units die, flow is measured on the compacted
network, whose tensors hold the same survivors in less room; masks are mapped back when somebody asks for them.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SynflowError
from ..flow.dispatch import Arithmetic
from ..flow.measure import Measurement, absolute, measure
from ..flow.tensor import leaves
from ..network.private_copy import Network, arguments, open_network
from ..support.chunked import count, count_true
from ..support.memory import collecting_later, give_back
from .candidate_passes import kernels_for
from .concurrent_search import Early
from .index_map import Origin, outside
from .recording import recorded
from .replay import Begin, Replay
from .select_lightest import Lightest, Scored
from .threshold_guess import Trend

log = logging.getLogger("synflow")

# Networks that hold fewer weights are through before a cut would pay.
SMALL = 1 << 20
# The network is cut down anew when this share of the weights it held is left,
LEFT = 0.4
# if no more than GAIN of what it holds stays then, and no more than WORTH of the whole: for a while both are held.
GAIN = 0.7
WORTH = 0.5
# A cut costs about as much as so many measurements that are saved later.
COST = 14
# With more products per weight, a measurement is better off with all threads.
BUSY = 64
# Images of fewer pixels are through before folding would pay.
LARGE = 16 * 16
# Flow of a network before and after it was cut down may differ by rounding, by no more.
SAME = 1e-5


class Survivors:
    """What is left of a network: `magnitudes` in the shapes of `small`, the network they are used in.

    Weights that are kept are those that are not zero; of tensors in which zeros are kept as well there are `masks`.
    `origin` is where the weights of tensors that were cut lie in the whole ones.
    """

    def __init__(
        self, network: Network, masks: Mapping[str, Tensor], power: int, shrinking: bool = True,
        repeating: bool = True,
    ) -> None:  # fmt: skip
        self.network, self.power = network, power
        self.small = network
        self._half = power == 1 and self._reads_half(masks)
        self.magnitudes = absolute(network, masks, power, half=self._half)
        self.masks = {name: mask.clone() for name, mask in masks.items() if self._keeps_zeros(name, mask)}
        self.origin: dict[str, Origin] = {}
        self.count = count(masks)
        self._outside: dict[str, Tensor] = {}
        self._places: dict[str, Tensor] = {}
        self._bounds: dict[str, float] = {}
        self._trend = Trend()
        self._compiled = kernels_for(self.magnitudes)
        self._idle = 0
        self._shrinking = shrinking
        self._model = network.model
        self._outline: Any = None
        self._held: float = self.count
        self._replay: Replay | None = None
        self._fresh: Measurement | None = None
        self._can_repeat = self._repeating = repeating and not self._half
        self._folds = False
        self._try_to_fold()

    def _keeps_zeros(self, name: str, mask: Tensor) -> bool:
        magnitude = self.magnitudes[name]
        if not magnitude.numel() or bool(magnitude.amin() > 0):
            return False
        return count_true(mask) > int(torch.count_nonzero(magnitude))

    def _kept(self, name: str) -> Tensor:
        """The mask of a tensor of the cut network."""
        return self.masks[name] if name in self.masks else self.magnitudes[name] != 0

    def _reads_half(self, masks: Mapping[str, Tensor]) -> bool:
        """Whether half-precision weights can stay so: layers widen theirs as they go, other operations may not."""
        if all(weight.dtype in (torch.float32, torch.float64) for weight in self.network.weights.values()):
            return False
        try:
            measure(self.network, magnitudes=absolute(self.network, masks, half=True), lazy=True)
        except SynflowError:
            return False
        return True

    def _try_to_fold(self) -> None:
        """See whether positions that see the same can be computed once: worth it for large images."""
        images = [
            leaf for leaf in leaves(arguments(self.network.example)) if isinstance(leaf, Tensor) and leaf.dim() == 4
        ]
        if max((image.shape[2] * image.shape[3] for image in images), default=0) < LARGE:
            return
        plain = measure(self.network, magnitudes=self.magnitudes, power=self.power, gradients=False)
        self._folds, problem = True, ""
        try:
            folded = self._measured(True)
            if not (plain.log2 == folded.log2 or math.isclose(plain.log2, folded.log2, abs_tol=SAME * 1.5)):
                problem = f"the flow changes from 2^{plain.log2} to 2^{folded.log2}"
        except Exception as cause:
            problem = f"{type(cause).__name__}: {cause}"
        if problem:
            log.debug("positions are not folded: %s", problem)
            self._folds, self._replay, self._repeating = False, None, self._can_repeat
        else:
            self._fresh = folded

    def measure(
        self, shifts: bool = True, gradients: bool = True, arithmetic: Arithmetic | None = None, going: int = 0
    ) -> tuple[Measurement, Scored]:
        """The flow of what is left, and its scores, which are not held; so many of the lightest will be asked for."""
        usual = shifts and gradients and arithmetic is None
        scored = Scored(
            self.magnitudes, self.masks, {}, self._places, self._bounds, self._trend if usual else Trend(),
            self._compiled,
        )  # fmt: skip
        found = None
        if usual and self._fresh is not None:
            flow, self._fresh = self._fresh, None
        elif usual and going and self._searches_early(scored):
            early = Early(scored, (going - self._idle) / max(self.count - self._idle, 1))
            try:
                flow = self._measured(usual, early.begin)
                found = early.finish() if flow.repeated else None
            finally:
                early.stop()
        else:
            flow = self._measured(usual, shifts=shifts, gradients=gradients, arithmetic=arithmetic)
        return flow, dataclasses.replace(scored, sensitivities=flow.sensitivities, flow=flow.value, found=found)

    def _searches_early(self, scored: Scored) -> bool:
        """Whether a thread can look for light weights while another measures, and measuring leaves it the time."""
        if self._replay is None or self._compiled is None or torch.get_num_threads() < 2:
            return False
        return scored.size >= SMALL and self._replay.products < BUSY * scored.size

    def _measured(self, usual: bool, begin: Begin | None = None, **how: Any) -> Measurement:
        """A measurement; the usual kind is written down the first time and repeated from then on."""
        flow = self._replay.run(begin) if usual and self._replay is not None else None
        if flow is not None:
            return flow
        run = partial(
            measure,
            self.small,
            magnitudes=self.magnitudes,
            power=self.power,
            lazy=True,
            fold=self._folds,
            bounded=self._compiled is not None,
            **how,
        )
        if not usual or not self._repeating:
            return run()
        try:
            flow, self._replay = recorded(run, self.magnitudes)
        # Operations that torch does not let be watched: whatever is wrong besides, measuring without will tell.
        except Exception as cause:
            log.debug("measurements are not recorded: %s: %s", type(cause).__name__, cause)
            flow = run()
        self._repeating = self._replay is not None
        return flow

    @property
    def idle(self) -> int:
        """How many kept weights no flow passes, known from the last time the network was cut down: the lightest."""
        return self._idle

    def drop(self, going: Lightest, scored: Scored) -> None:
        """Prune the lightest weights, and the idle ones with them."""
        scored.remove(going)
        self.count -= going.number + self._idle
        self._outside, self._idle, self._fresh = {}, 0, None

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the cut network (masks, scores) in the shapes of the whole one, zero where nothing is left."""
        full = {}
        for name, tensor in tensors.items():
            full[name] = tensor
            if name in self.origin:
                room = torch.zeros(self.network.weights[name].shape, dtype=tensor.dtype, device=tensor.device)
                full[name] = room
                room.view(-1).index_copy_(0, self.origin[name].flat().view(-1).long(), tensor.reshape(-1))
        return full

    def whole_masks(self, last: bool = False) -> dict[str, Tensor]:
        """The masks of the whole network, in tensors of their own unless nobody goes on from here."""
        full = self.whole({name: self._kept(name) for name in self.magnitudes})
        if not last:
            full |= {name: mask.clone() for name, mask in self.masks.items() if name not in self.origin}
        for name, positions in self._outside.items():
            full[name].view(-1)[positions] = True
        return full

    def replace(self, masks: Mapping[str, Tensor]) -> None:
        """Go on with other masks of the whole network, which keep nothing that was pruned."""
        for name in self.magnitudes:
            part = masks[name]
            if name in self.origin:
                part = part.reshape(-1)[self.origin[name].flat().long()]
            if name in self.masks:
                self.masks[name].copy_(part)
            self.magnitudes[name].masked_fill_(part.logical_not(), 0.0)
        self.count, self._fresh = count(masks), None
        self._outside = {name: positions[masks[name].view(-1)[positions]] for name, positions in self._outside.items()}
        self._idle = sum(len(positions) for positions in self._outside.values())

    def shrink(self, ahead: float = math.inf) -> None:
        """Cut the network down to the units that are alive, where enough has gone and enough measurements lie ahead."""
        if not self._shrinking or self.count > LEFT * self._held or self.small.size < SMALL or ahead < COST:
            return
        alive, size = self._share_alive(), self.small.size
        if alive > self._enough() or ahead * (1 - alive) < COST:
            self._held = self.count * GAIN / LEFT  # units go when all that leads to them has gone: look again soon
            return
        self._held = self.count
        give_back()  # for a while the network is held twice
        problem = ""
        # Most networks run once they are cut; those that do not, with heads and the like left whole.
        for check in (False, True):
            try:
                self._shrink(check)
                break
            # Whatever a model does that cannot be followed, scores do not depend on it: the network stays as it is.
            except Exception as cause:
                problem = f"{type(cause).__name__}: {cause}"
        else:
            self._stop(problem)
        if self.small.size == size:
            self._held = self.count * GAIN / LEFT

    def _enough(self) -> float:
        """How small a cut network has to be, as a share of the one that is held."""
        return min(GAIN, WORTH * self.network.size / self.small.size)

    def _share_alive(self) -> float:
        """About how much a cut would leave: rows and columns with weights, whatever else may die with the others."""
        alive = sum(_alive(self._kept(name)) for name in self.magnitudes)
        return alive / max(self.small.size, 1)

    @collecting_later
    def _shrink(self, check: bool) -> None:
        from ..compaction.cut.surgery import cut as part_of
        from ..compaction.cut.while_pruning import cut_down, outline  # compaction is built on scores, not the reverse

        if self._outline is None:
            self._outline = outline(self._model, self.network.example)
        masks = {name: self._kept(name) for name in self.magnitudes}
        cut = cut_down(self._outline, masks, self._enough(), check)
        kept = {name: cut.kept[name] for name in masks if name in cut.kept}
        if not kept:
            return
        # What is needed of masks and whole tensors is taken first, so that they are not held besides what follows.
        origin = {name: self.origin.get(name) or Origin.of(self.magnitudes[name]) for name in kept}
        leaving = {name: origin[name].at(outside(masks.pop(name), indices)) for name, indices in kept.items()}
        del masks
        again = self._repeating  # else gradients would only take memory
        known = (self.small, self.magnitudes, self._replay)
        before = self._replay.log2() if self._replay is not None else self._measured(False, gradients=False).log2
        model, chosen = cut.apply(self._model, self.magnitudes), set(self.magnitudes)
        self.small = open_network(
            model, self.network.example, select=lambda name, _: name in chosen,
            seed=self.network.seed, score_name=self.network.score_name, own=True,
        )  # fmt: skip
        self.magnitudes = {name: part_of(tensor, kept.get(name, {})) for name, tensor in self.magnitudes.items()}
        self._replay = None
        try:
            after = self._measured(again, gradients=again)
            if not math.isclose(before, after.log2, abs_tol=SAME * 1.5):
                raise SynflowError(f"its flow changes from 2^{before} to 2^{after.log2}")
        except Exception:
            self.small, self.magnitudes, self._replay = known
            raise
        log.debug("goes on with %d of %d weights held", self.small.size, self.network.size)
        for name, indices in kept.items():
            self._leave(name, leaving[name])
            self.origin[name] = origin[name].cut(indices)
            if name in self.masks:
                self.masks[name] = part_of(self.masks[name], indices)
        self._model, self._fresh = model, after if again else None
        self._places, self._outline = {}, None

    def _leave(self, name: str, positions: Tensor) -> None:
        """Note the kept weights of a tensor that are not in the cut network, by where they lie in the whole one."""
        if not len(positions):
            return
        before = self._outside.get(name)
        self._outside[name] = positions if before is None else torch.cat([before, positions])
        self._idle += len(positions)

    def _stop(self, reason: str) -> None:
        log.debug("%s is not cut down while it is pruned: %s", type(self.network.model).__name__, reason)
        self._shrinking = False


def _alive(mask: Tensor) -> int:
    """The size of a tensor without its empty rows and columns."""
    if mask.dim() < 2 or not mask.numel():
        return mask.numel()
    rows = mask.flatten(1)
    if mask.device.type == "cpu":  # NumPy is several times as fast
        array = rows.numpy()
        down, across = array.any(axis=1), torch.from_numpy(array.any(axis=0))
        number = int(np.count_nonzero(down))
    else:
        number, across = int(rows.any(1).sum()), rows.any(0)
    kernel = mask.shape[2:].numel()
    return number * kernel * int(across.view(mask.shape[1], -1).any(1).sum())
