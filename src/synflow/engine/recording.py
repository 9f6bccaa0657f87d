"""Recording a measurement: the tensor operations, forward and backward, that depend on the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..flow.measure import Measurement
from ..flow.tensor import READING
from ..support.private_torch import DispatchMode, StorageWeakRef, storage_id, written
from .fallbacks import CannotServeError
from .replay import Call, Gradients, Parts, Replay

# In place of a slot: a view of the weights' own memory, which is read where it lies.
LIVE = -1
# Operations that change the shape of a tensor in place, and the views that stand for them in a recording.
VIEWS_FOR = {
    "aten::squeeze_": "squeeze", "aten::unsqueeze_": "unsqueeze", "aten::t_": "t", "aten::transpose_": "transpose",
    "aten::swapaxes_": "swapaxes", "aten::swapdims_": "swapdims",
}  # fmt: skip


def recorded(
    measure: Callable[[], tuple[Measurement, Gradients]], magnitudes: Mapping[str, Tensor]
) -> tuple[Measurement, Gradients, Replay | CannotServeError]:
    """A measurement of these magnitudes with its gradients, and how to repeat it, or why that cannot be done."""
    recorder = _Recorder(magnitudes)
    with recorder:
        flow, gradients = measure()
    try:
        return flow, gradients, recorder.finished(flow, gradients)
    except CannotServeError as reason:
        return flow, gradients, reason


@dataclass(frozen=True)
class _Facts:
    """The properties of an operation that decide how it is recorded."""

    name: str
    decides: bool
    random: bool
    views: bool
    reshapes: bool

    @staticmethod
    @cache
    def of(func: Any) -> _Facts:
        """Looked up once for each operation, since torch is slow to answer."""
        tags = func.tags
        return _Facts(
            name=func._schema.name,
            decides=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
            random=torch.Tag.nondeterministic_seeded in tags,
            views=func.is_view,
            reshapes=torch.Tag.inplace_view in tags,
        )


class _Recorder(DispatchMode):
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

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = list(_tensors((*args, *kwargs.values())))
        # Looked up before the operation runs: some change the shape of a tensor in place.
        known = {id(tensor): self.slots.get(_key(tensor)) for tensor in given}
        strangers = [tensor for tensor in given if known[id(tensor)] is None and self._is_flowing(tensor)]
        result = func(*args, **kwargs)
        if not self.problem:
            try:
                if strangers:
                    raise CannotServeError(f"{func} reads a flow by a view that no recorded operation made")
                self._note(func, args, kwargs, known, result)
            except CannotServeError as reason:
                self.problem, self.calls = str(reason), []
        return result

    def _is_flowing(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in memory that depends on the weights."""
        return storage_id(tensor) in self.storages

    def _note(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: dict[int, int | None], result: Any
    ) -> None:
        depends = {slot for slot in known.values() if slot is not None}
        if not depends:
            return
        facts = _Facts.of(func)
        if facts.name == "aten::detach" or (facts.name == "aten::_local_scalar_dense" and READING.harmless):
            return  # the same numbers in the same memory; or numbers on which nothing depends
        if facts.views and isinstance(result, Tensor) and _key(result) in self.slots:
            return  # a view that shows the same numbers in the same shape
        if facts.views and depends == {LIVE} and isinstance(result, Tensor):
            self.slots[_key(result)] = LIVE
            return
        by_place = facts.name == "aten::index" and all(known[id(tensor)] is None for tensor in _tensors(args[1]))
        if facts.decides and not by_place:
            raise CannotServeError(f"{facts.name} decides by the values of the flow")
        if facts.random:
            raise CannotServeError(f"{facts.name} draws random numbers")
        if facts.reshapes:
            self._note_reshape(facts, args, kwargs, known, result)
            return
        changed = written(func, args, kwargs)
        if any(known[id(tensor)] in (None, LIVE) for tensor in _tensors(changed)):
            raise CannotServeError(f"{facts.name} writes into a constant")
        outputs = [result] if isinstance(result, Tensor) else list(result)
        if any(not (part is None or isinstance(part, Tensor)) for part in outputs):
            raise CannotServeError(f"{facts.name} returns more than tensors")
        call = Call(func, bool(changed), isinstance(result, Tensor))
        call.args, call.kwargs = _filled(call, list(args), known), _filled(call, kwargs, known)
        call.outputs = [None if part is None else self._slot(part) for part in outputs]
        self.calls.append(call)

    def _note_reshape(
        self, facts: _Facts, args: tuple[Any, ...], kwargs: dict[str, Any], known: dict[int, int | None], result: Tensor
    ) -> None:
        """Record a view in place of an operation that changes a shape in place: other views keep theirs."""
        if facts.name not in VIEWS_FOR or known[id(args[0])] == LIVE:
            raise CannotServeError(f"{facts.name} changes a shape in place")
        call = Call(getattr(torch.Tensor, VIEWS_FOR[facts.name]), writes=False, single=True)
        call.args, call.kwargs = _filled(call, list(args), known), _filled(call, kwargs, known)
        call.outputs = [self._slot(result)]
        self.calls.append(call)

    def _slot(self, tensor: Tensor) -> int:
        """A new slot for a result."""
        self._hold(tensor)
        self.slots[_key(tensor)] = self.count
        self.count += 1
        return self.count - 1

    def _hold(self, tensor: Tensor) -> None:
        if not self._is_flowing(tensor):
            self.storages[storage_id(tensor)] = StorageWeakRef(tensor.untyped_storage())

    def finished(self, flow: Measurement, gradients: Gradients) -> Replay:
        """All that the flow and its gradients need."""
        if not flow.value > 0 or flow.total is None:
            raise CannotServeError("there is no flow")
        if self.problem:
            raise CannotServeError(self.problem)
        results: list[int | Tensor] = []

        def result(tensor: Tensor) -> int:
            slot = self.slots.get(_key(tensor), LIVE)
            if _key(tensor) not in self.slots and self._is_flowing(tensor):
                raise CannotServeError("a result is a view that no recorded operation made")
            results.append(tensor.detach() if slot == LIVE else slot)
            return len(results) - 1

        result(flow.total)
        parts = {
            name: Parts(
                gradient.shape, None if gradient.dense is None else result(gradient.dense),
                [(result(use.left), result(use.right), use.windows) for use in gradient.uses],
                None if gradient.flow is None else result(gradient.flow),
            )
            for name, gradient in gradients.items()
        }  # fmt: skip
        calls = _needed(self.calls, {slot for slot in results if isinstance(slot, int)})
        return Replay(replace(flow, total=None), calls, self.count, results, parts)


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
    return storage_id(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
