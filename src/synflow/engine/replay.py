"""A measurement that was written down (recording.py), repeated without Python's and autograd's part in it.

From step to step only the values of the weights change: running the same operations again gives the flow and the
sensitivities of what is left. The powers of two by which flows were rescaled stay as they were recorded: they round
nothing, and a flow that drifts too far is recorded anew.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..flow.measure import Measurement
from ..support.torch_modes import plain_tensors
from .factored_gradient import Sensitivity, Use

# A flow this many powers of two from the recorded one is recorded anew: numbers would come near the edge of their type.
DRIFT = 40

Tell = Callable[[str, Sensitivity], None]
Begin = Callable[[float], Tell | None]


@dataclass
class Call:
    """An operation: its arguments, where in them values of slots go, what slots it fills, and which it empties."""

    function: Callable[..., Any]
    writes: bool
    single: bool
    heavy: bool
    products: int
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    puts: list[tuple[Any, Any, int]] = field(default_factory=list)
    outputs: list[int | None] = field(default_factory=list)
    frees: list[int] = field(default_factory=list)
    completes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """A sensitivity, by where its parts are among the results."""

    shape: torch.Size
    dense: int | None
    uses: list[tuple[int, int, Any]]


@dataclass(frozen=True)
class Replay:
    """A recorded measurement (`first`, without its sensitivities); `run` repeats it on the weights as they are now."""

    first: Measurement
    _calls: list[Call]
    _slots: int
    _results: list[int | Tensor]
    _parts: dict[str, Parts]
    _flags: list[int]
    _forward: int

    def run(self, begin: Begin | None = None) -> Measurement | None:
        """The flow and the sensitivities now; None where the recording no longer serves.

        `begin` is called with the flow, as soon as it is known; what it returns is told of each sensitivity that is
        there. Whatever it starts has one of torch's threads to itself from then on.
        """
        found = self._repeated(self._calls, begin)
        value = float(found[0])
        if not all(bool(found[flag]) for flag in self._flags) or not self._serves(value):
            return None
        sensitivities = {name: self._sensitivity(name, found) for name in self._parts}
        return dataclasses.replace(self.first, value=value, sensitivities=sensitivities, repeated=True)

    @property
    def products(self) -> int:
        """How many numbers are multiplied."""
        return sum(call.products for call in self._calls)

    def log2(self) -> float:
        """log2 of the flow now; sensitivities are not made."""
        value = float(self._repeated(self._calls[: self._forward + 1])[0])
        return dataclasses.replace(self.first, value=value).log2

    def _serves(self, value: float) -> bool:
        return math.isfinite(value) and value > 0 and abs(math.log2(value / self.first.value)) <= DRIFT

    def _sensitivity(self, name: str, found: Sequence[Any]) -> Sensitivity:
        parts = self._parts[name]
        dense = None if parts.dense is None else found[parts.dense]
        uses = [Use(found[left], found[right], windows) for left, right, windows in parts.uses]
        return Sensitivity(parts.shape, dense, uses)

    @plain_tensors
    def _repeated(self, calls: list[Call], begin: Begin | None = None) -> list[Any]:
        """What is in the places of the results after some calls."""
        values: list[Any] = [None] * self._slots
        tell: Tell | None = None

        def results() -> list[Any]:
            return [values[slot] if isinstance(slot, int) else slot for slot in self._results]

        with torch.no_grad(), _Threads() as threads:
            for index, call in enumerate(calls):
                for place, key, slot in call.puts:
                    place[key] = values[slot]
                threads.use(call.heavy and tell is None)
                outcome = call.function(*call.args, **call.kwargs)
                for output, value in zip(call.outputs, (outcome,) if call.single else outcome, strict=True):
                    if output is not None:
                        values[output] = value
                for place, key, _ in call.puts:
                    place[key] = None
                for slot in call.frees:
                    values[slot] = None
                if begin is not None and index == self._forward:
                    flow = float(results()[0])
                    tell = begin(flow) if self._serves(flow) else None
                if tell is not None and call.completes:
                    found = results()
                    for name in call.completes:
                        tell(name, self._sensitivity(name, found))
        return results()


class _Threads:
    """All of torch's threads for heavy operations, one for light ones: to wait for others costs more than they help."""

    def __enter__(self) -> _Threads:
        self.most = self.now = torch.get_num_threads()
        return self

    def use(self, heavy: bool) -> None:
        """Set the number of threads for the next operation."""
        wanted = self.most if heavy else 1
        if wanted != self.now:
            torch.set_num_threads(wanted)
            self.now = wanted

    def __exit__(self, *_: object) -> None:
        if self.now != self.most:
            torch.set_num_threads(self.most)
