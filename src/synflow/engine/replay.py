"""A recorded measurement, repeated without the Python of the model, the rules and autograd.

From step to step only the values of the weights change, so the same tensor operations give the flow and the gradients
of what is left. The powers of two by which flows were rescaled stay as recorded: they round nothing, and a flow that
drifts too far is recorded anew.
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
from .factored_gradient import FactoredGradient, Use

# A flow this many powers of two from the recorded one is recorded anew: numbers would come near the edge of their type.
DRIFT = 40
# A replay and a measurement run the same operations on the same values: they may differ by rounding, not by more.
SAME = 1e-5

Gradients = dict[str, FactoredGradient]


@dataclass
class Call:
    """An operation: its arguments, where in them the values of slots go, which slots it fills and which it frees."""

    function: Callable[..., Any]
    writes: bool
    single: bool
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    puts: list[tuple[Any, Any, int]] = field(default_factory=list)
    outputs: list[int | None] = field(default_factory=list)
    frees: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """A factored gradient, by where its parts are among the results."""

    shape: torch.Size
    dense: int | None
    uses: list[tuple[int, int, Any]]
    flow: int | None


@dataclass(frozen=True)
class Replay:
    """A recorded measurement (`first`); `run` repeats it on the weights as they are now."""

    first: Measurement
    _calls: list[Call]
    _slots: int
    _results: list[int | Tensor]
    _parts: dict[str, Parts]

    def run(self) -> tuple[Measurement, Gradients] | None:
        """The flow and the gradients now; None where the recording no longer serves."""
        found = self._repeated()
        value = float(found[0])
        if not (math.isfinite(value) and value > 0 and abs(math.log2(value / self.first.value)) <= DRIFT):
            return None
        return dataclasses.replace(self.first, value=value), {name: self._gradient(name, found) for name in self._parts}

    def agrees_with(self, flow: Measurement, gradients: Gradients) -> bool:
        """Whether repeating gives what a measurement of the same weights gave: the proof of a recording."""
        again = self.run()
        if again is None:
            return True  # it says itself that it no longer serves
        if not math.isclose(again[0].log2, flow.log2, abs_tol=2 * SAME):
            return False
        shift = again[0].exponent - flow.exponent
        return all(_same(again[1][name], gradient, shift) for name, gradient in gradients.items())

    def _gradient(self, name: str, found: Sequence[Any]) -> FactoredGradient:
        parts = self._parts[name]
        dense = None if parts.dense is None else found[parts.dense]
        uses = [Use(found[left], found[right], windows) for left, right, windows in parts.uses]
        return FactoredGradient(parts.shape, dense, uses, flow=None if parts.flow is None else found[parts.flow])

    @plain_tensors
    def _repeated(self) -> list[Any]:
        """What is in the places of the results after all calls."""
        values: list[Any] = [None] * self._slots
        with torch.no_grad():
            for call in self._calls:
                for place, key, slot in call.puts:
                    place[key] = values[slot]
                outcome = call.function(*call.args, **call.kwargs)
                for output, value in zip(call.outputs, (outcome,) if call.single else outcome, strict=True):
                    if output is not None:
                        values[output] = value
                for place, key, _ in call.puts:
                    place[key] = None
                for slot in call.frees:
                    values[slot] = None
        return [values[slot] if isinstance(slot, int) else slot for slot in self._results]


def _same(one: FactoredGradient, other: FactoredGradient, shift: int) -> bool:
    """Whether two gradients of the same weights are equal up to rounding and a power of two, by sums over their parts.

    Flows may have been rescaled on the way by other powers of two, so single factors are not compared.
    """
    first, second = _sums(one), _sums(other)
    return len(first) == len(second) and all(
        math.isclose(math.ldexp(a, shift), b, rel_tol=SAME, abs_tol=1e-300) for a, b in zip(first, second, strict=True)
    )


def _sums(gradient: FactoredGradient) -> list[float]:
    products = [float(use.left.double().sum()) * float(use.right.double().sum()) for use in gradient.uses]
    return products + [float(part.double().sum()) for part in (gradient.dense, gradient.flow) if part is not None]
