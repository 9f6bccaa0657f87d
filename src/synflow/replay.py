"""A measurement written down once and repeated without Python's and autograd's part in it.

From step to step only the values of the weights change. So the tensor operations of one measurement, forward and
backward, are recorded as a graph; running the graph again gives the flow and the sensitivities of what is left. The
powers of two by which flows were rescaled stay as they were recorded: they round nothing, and a flow that drifts too
far is recorded anew.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .flow import READING
from .measurement import Measurement
from .modes import plain_tensors
from .sensitivity import Sensitivity, Use

log = logging.getLogger("synflow")

# A flow this many powers of two from the recorded one is recorded anew: numbers would come near the edge of their type.
DRIFT = 40
# What a recording may hold, as a share of what the weights take: each result lives until the end of it.
ROOM = 0.5


class _NotRepeatableError(Exception):
    """Why operations cannot be repeated with other values."""


@dataclass(frozen=True)
class Replay:
    """A recorded measurement; `run` repeats it on the weights as they are now."""

    first: Measurement  # without its sensitivities
    _run: Callable[..., Any]
    _given: tuple[Tensor, ...]
    _shapes: dict[str, torch.Size]
    _windows: dict[str, list[Any]]

    @plain_tensors
    def run(self) -> Measurement | None:
        """The flow and the sensitivities now; None where the recording no longer serves."""
        with torch.no_grad():
            total, found = self._run(*self._given)
        value = float(total)
        if not math.isfinite(value) or not value > 0 or abs(math.log2(value / self.first.value)) > DRIFT:
            return None
        sensitivities = {}
        for name, (dense, uses) in found.items():
            again = [Use(left, right, how) for (left, right), how in zip(uses, self._windows[name], strict=True)]
            sensitivities[name] = Sensitivity(self._shapes[name], dense, again)
        return dataclasses.replace(self.first, value=value, sensitivities=sensitivities)


def recorded(measure: Callable[[], Measurement], magnitudes: Mapping[str, Tensor]) -> tuple[Measurement, Replay | None]:
    """A lazy measurement of these magnitudes, and how to repeat it (None where that cannot be done)."""
    recorder = _Recorder(magnitudes)
    with recorder:
        flow = measure()
    try:
        replay = recorder.finished(flow)
    except _NotRepeatableError as reason:
        log.debug("measurements are not repeated from a recording: %s", reason)
        replay = None
    return flow, replay


class _Recorder(TorchDispatchMode):
    """Sees each tensor operation below autograd and writes down those that depend on the weights."""

    def __init__(self, magnitudes: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.nodes: dict[Any, fx.Node] = {}
        self.given: list[Tensor] = []
        self.inputs: list[fx.Node] = []
        self.held: list[Tensor] = []  # so that no storage is used again while keys point to it
        self.storages = {magnitude.untyped_storage()._cdata for magnitude in magnitudes.values()}
        self.room = int(ROOM * sum(m.numel() * m.element_size() for m in magnitudes.values())) + (1 << 24)
        self.problem = ""
        for magnitude in magnitudes.values():
            self.nodes[_key(magnitude)] = self._placeholder(magnitude)
        self.live = set(self.nodes)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes two seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.problem:
            self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not self._lives((args, kwargs)):
            return None
        name, tags = func._schema.name, func.tags
        if name == "aten::_local_scalar_dense" and READING.harmless:
            return None
        by_place = name == "aten::index" and not self._lives(args[1])
        if (torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags) and not by_place:
            return self._stop(f"{name} decides by the values of the flow")
        if torch.Tag.nondeterministic_seeded in tags:
            return self._stop(f"{name} draws random numbers")
        for written in _written(func, args, kwargs):
            if _key(written) not in self.live:
                return self._stop(f"{name} writes into a constant")
        take = pytree.tree_map(lambda leaf: self._node(leaf) if isinstance(leaf, Tensor) else leaf, (args, kwargs))
        node = self.graph.call_function(func, *take)
        if isinstance(result, Tensor):
            self._hold(result, node)
            return None
        for index, part in enumerate(result if isinstance(result, (tuple, list)) else [result]):
            if isinstance(part, Tensor):
                self._hold(part, self.graph.call_function(operator.getitem, (node, index)))
            elif part is not None:
                return self._stop(f"{name} returns {type(part).__name__}")
        return None

    def _lives(self, tree: Any) -> bool:
        """Whether something in nested arguments depends on the weights."""
        return any(isinstance(leaf, Tensor) and _key(leaf) in self.live for leaf in pytree.tree_leaves(tree))

    def _hold(self, tensor: Tensor, node: fx.Node) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.storages:
            self.storages.add(storage._cdata)
            self.room -= storage.nbytes()
            if self.room < 0:
                return self._stop("it would hold too much")
        key = _key(tensor)
        self.held.append(tensor)
        self.nodes[key] = node
        self.live.add(key)
        return None

    def _stop(self, reason: str) -> None:
        self.problem = reason
        self.held.clear()
        self.graph = fx.Graph()

    def _placeholder(self, tensor: Tensor) -> fx.Node:
        with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
            node = self.graph.placeholder(f"given{len(self.given)}")
        self.given.append(tensor)
        self.inputs.append(node)
        return node

    def _node(self, tensor: Tensor) -> fx.Node:
        key = _key(tensor)
        if key not in self.nodes:
            self.nodes[key] = self._placeholder(tensor.detach())
        return self.nodes[key]

    def finished(self, flow: Measurement) -> Replay:
        """The graph of all that the flow and its sensitivities need."""
        if not flow.value > 0 or flow.total is None:
            raise _NotRepeatableError("there is no flow")
        if self.problem:
            raise _NotRepeatableError(self.problem)
        found, shapes, windows = {}, {}, {}
        for name, sensitivity in flow.sensitivities.items():
            dense = None if sensitivity.dense is None else self._node(sensitivity.dense)
            found[name] = (dense, [(self._node(use.left), self._node(use.right)) for use in sensitivity.uses])
            shapes[name], windows[name] = sensitivity.shape, [use.windows for use in sensitivity.uses]
        self.graph.output((self._node(flow.total), found))
        self.graph.eliminate_dead_code()
        given = dict(zip(self.inputs, self.given, strict=True))
        order = tuple(given[node] for node in self.graph.nodes if node.op == "placeholder")
        run = fx.GraphModule(torch.nn.Module(), self.graph).forward
        return Replay(dataclasses.replace(flow, sensitivities={}, total=None), run, order, shapes, windows)


def _key(tensor: Tensor) -> Any:
    """The same for all tensors that show the same numbers of the same memory: autograd hands on copies of tensors."""
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that an operation writes to."""
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return found
