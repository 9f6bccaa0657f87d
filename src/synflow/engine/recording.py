"""Writing a measurement down: the tensor operations, forward and backward, that depend on the weights."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ..flow.measure import Measurement
from ..flow.tensor import READING
from ..support.memory import collecting_later
from .custom_ops import DIRECT
from .replay import Call, Parts, Replay

log = logging.getLogger("synflow")

# With fewer multiplications, or fewer numbers moved, an operation runs on one thread.
PRODUCTS = 1 << 23
NUMBERS = 1 << 18
# In place of a slot: a view of the weights' own memory, which is read where it lies.
LIVE = -1


class _NotRepeatableError(Exception):
    """Why operations cannot be repeated with other values."""


@collecting_later
def recorded(measure: Callable[[], Measurement], magnitudes: Mapping[str, Tensor]) -> tuple[Measurement, Replay | None]:
    """A lazy measurement of these magnitudes, and how to repeat it (None where that cannot be done)."""
    recorder = _Recorder(magnitudes)
    READING.checks = []
    try:
        with recorder:
            flow = measure()
        checks = READING.checks
    finally:
        READING.checks = None
    try:
        replay = recorder.finished(flow, checks)
    except _NotRepeatableError as reason:
        log.debug("measurements are not repeated from a recording: %s", reason)
        replay = None
    return flow, replay


@dataclass(frozen=True)
class _Facts:
    """What is asked of each kind of operation."""

    name: str
    decides: bool
    random: bool
    views: bool
    writes: list[tuple[int, str]]

    @staticmethod
    @cache
    def of(func: Any) -> _Facts:
        """Looked up once per kind: torch takes its time."""
        schema, tags = func._schema, func.tags
        return _Facts(
            name=schema.name,
            decides=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
            random=torch.Tag.nondeterministic_seeded in tags,
            views=func.is_view,
            writes=[
                (index, argument.name)
                for index, argument in enumerate(schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ],
        )


class _Recorder(TorchDispatchMode):
    """Sees each tensor operation below autograd and writes down those that depend on the weights.

    What depends on them has a slot, but for views of the weights, which stay what they are (`LIVE`); everything else
    is a constant and is written down as it is.
    """

    def __init__(self, magnitudes: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.slots: dict[Any, int] = {}
        self.count = 0
        self.calls: list[Call] = []
        # Weak, so that memory is freed as usual, and yet no storage comes back at the address of another one.
        self.storages: dict[int, StorageWeakRef] = {}
        self.problem = ""
        for magnitude in magnitudes.values():
            self._hold(magnitude)
            self.slots[_key(magnitude)] = LIVE

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes two seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.problem:
            try:
                self._note(func, args, kwargs, result)
            except _NotRepeatableError as reason:
                self.problem, self.calls = str(reason), []
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = list(_tensors((*args, *kwargs.values())))
        known = {id(tensor): self.slots.get(_key(tensor)) for tensor in given}
        depends = {slot for slot in known.values() if slot is not None}
        if not depends:
            return
        facts = _Facts.of(func)
        if facts.name == "aten::detach" or (facts.name == "aten::_local_scalar_dense" and READING.harmless):
            return  # the same numbers in the same memory; or numbers on which nothing depends
        if facts.views and depends == {LIVE} and isinstance(result, Tensor):
            self.slots[_key(result)] = LIVE
            return
        by_place = facts.name == "aten::index" and all(known[id(tensor)] is None for tensor in _tensors(args[1]))
        if facts.decides and not by_place:
            raise _NotRepeatableError(f"{facts.name} decides by the values of the flow")
        if facts.random:
            raise _NotRepeatableError(f"{facts.name} draws random numbers")
        written = [args[index] if index < len(args) else kwargs.get(name) for index, name in facts.writes]
        if any(known[id(tensor)] in (None, LIVE) for tensor in _tensors(written)):
            raise _NotRepeatableError(f"{facts.name} writes into a constant")
        outputs = [result] if isinstance(result, Tensor) else list(result)
        if any(not (part is None or isinstance(part, Tensor)) for part in outputs):
            raise _NotRepeatableError(f"{facts.name} returns more than tensors")
        call = Call(
            DIRECT.get(func, func), bool(written), isinstance(result, Tensor), _is_heavy(facts.name, given, outputs),
            _products(facts.name, given, outputs),
        )  # fmt: skip
        call.args, call.kwargs = _filled(call, list(args), known), _filled(call, kwargs, known)
        call.outputs = [None if part is None else self._slot(part) for part in outputs]
        self.calls.append(call)

    def _slot(self, tensor: Tensor) -> int:
        """A new slot for a result."""
        self._hold(tensor)
        self.slots[_key(tensor)] = self.count
        self.count += 1
        return self.count - 1

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.storages:
            self.storages[storage._cdata] = StorageWeakRef(storage)

    def finished(self, flow: Measurement, checks: list[Tensor]) -> Replay:
        """All that the flow and its sensitivities need."""
        if not flow.value > 0 or flow.total is None:
            raise _NotRepeatableError("there is no flow")
        if self.problem:
            raise _NotRepeatableError(self.problem)
        results: list[int | Tensor] = []

        def result(tensor: Tensor) -> int:
            slot = self.slots.get(_key(tensor), LIVE)
            results.append(tensor.detach() if slot == LIVE else slot)
            return len(results) - 1

        result(flow.total)
        parts = {
            name: Parts(
                sensitivity.shape, None if sensitivity.dense is None else result(sensitivity.dense),
                [(result(use.left), result(use.right), use.windows) for use in sensitivity.uses],
            )
            for name, sensitivity in flow.sensitivities.items()
        }  # fmt: skip
        flags = [result(check) for check in checks]
        calls = _needed(self.calls, {slot for slot in results if isinstance(slot, int)})
        first = dataclasses.replace(flow, sensitivities={}, total=None)
        made = {slot: index for index, call in enumerate(calls) for slot in call.outputs if slot is not None}
        forward = _last(made, results, [0])
        for name, part in parts.items():
            places = [place for use in part.uses for place in use[:2]]
            places += [] if part.dense is None else [part.dense]
            # Whatever is there before the flow is known is told of with it.
            calls[max(_last(made, results, places), forward)].completes.append(name)
        return Replay(first, calls, self.count, results, parts, flags, forward)


def _last(made: Mapping[int, int], results: Sequence[Any], places: Iterable[int]) -> int:
    """The call after which some of the results are there."""
    slots = [results[place] for place in places]
    return max((made[slot] for slot in slots if isinstance(slot, int)), default=0)


def _products(name: str, given: list[Tensor], made: list[Tensor | None]) -> int:
    """How many numbers an operation multiplies, if that is what it is for."""
    if name in ("aten::mm", "aten::bmm"):
        return given[0].numel() * given[1].shape[-1]
    if name == "aten::convolution" and made[0] is not None:
        return made[0].numel() * given[1][0].numel()
    if name == "aten::convolution_backward":
        return 2 * given[0].numel() * given[2][0].numel()
    return 0


def _is_heavy(name: str, given: list[Tensor], made: list[Tensor | None]) -> bool:
    """Whether several threads are worth it, by how many numbers are multiplied or moved."""
    products = _products(name, given, made)
    if products or name.startswith("synflow::"):
        return products >= PRODUCTS
    return sum(tensor.numel() for tensor in (*given, *made) if tensor is not None) >= NUMBERS


def _filled(call: Call, tree: Any, known: Mapping[int, int | None]) -> Any:
    """A copy of nested arguments, with a note of where the values of slots belong."""
    copy: Any = {} if isinstance(tree, dict) else [None] * len(tree)
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        slot = known.get(id(value))
        if slot is not None and slot != LIVE:
            call.puts.append((copy, key, slot))
        elif isinstance(value, Tensor):
            copy[key] = value.detach()
        else:
            copy[key] = _filled(call, value, known) if isinstance(value, (list, tuple)) else value
    return copy


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the arguments of an operation, which may be in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)) and not (value and isinstance(value[0], (int, float))):
            yield from _tensors(value)


def _needed(calls: list[Call], results: set[int]) -> list[Call]:
    """The calls without which results would be missing, each with the slots that nobody reads after it."""
    wanted, found = set(results), []
    for call in reversed(calls):
        outputs = {slot for slot in call.outputs if slot is not None}
        if not call.writes and not outputs & wanted:
            continue
        inputs = {slot for _, _, slot in call.puts}
        call.frees = sorted((inputs | outputs) - wanted)
        wanted |= inputs
        found.append(call)
    return found[::-1]


def _key(tensor: Tensor) -> Any:
    """The same for all tensors that show the same numbers of the same memory: autograd hands on copies of tensors."""
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
