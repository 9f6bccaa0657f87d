"""What a model computed: its operations in order, and what its code did beside them."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...support.private_torch import pytree
from .aten_names import COPIES, FILLED, elementwise
from .attributes import Attribute

NUMBER = "_synflow_number"  # the attribute of a tensor that holds its tape and its number there


@dataclass(frozen=True)
class Ref:
    """Stands for a tensor in the arguments of a step."""

    number: int


@dataclass(frozen=True)
class Step:
    """One operation: its name without the in-place underscore, its arguments by name, what it read and what it made."""

    name: str
    op: Any
    args: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    module: str

    def ref(self, name: str) -> int | None:
        """The number of a tensor argument, None where it was not given."""
        value = self.args.get(name)
        return value.number if isinstance(value, Ref) else None

    def redo(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run the step's operation on other tensors."""
        given = dict(zip(self.inputs, tensors, strict=False))

        def resolve(leaf: Any) -> Any:
            return given[leaf.number] if isinstance(leaf, Ref) else leaf

        args = {name: pytree.tree_map(resolve, value) for name, value in self.args.items()}
        positional = [a.name for a in self.op._schema.arguments if not a.kwarg_only]
        result = self.op(*[args.pop(name) for name in positional if name in args], **args)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]

    @functools.cached_property
    def at_zero(self) -> tuple[float, float] | None:
        """Value and slope at zero of a function of each element of one tensor; None for any other operation."""
        if len(self.inputs) != 1 or self.name in FILLED or not elementwise(self.name, self.op):
            return None
        if self.name in COPIES:
            return 0.0, 1.0
        x = torch.zeros((), dtype=torch.float64, requires_grad=True)
        try:
            with torch.enable_grad():
                value = self.redo([x * 1])[0]
                slope = float(torch.autograd.grad(value, x)[0]) if value.requires_grad else 0.0
        except (RuntimeError, TypeError):  # an operation on whole numbers
            return None
        return float(value.detach()), slope


class Decision(NamedTuple):
    """A tensor whose values came into Python, the module whose code asked, and whether it asked for a truth value."""

    number: int
    path: str
    truth: bool


class Call(NamedTuple):
    """A call of a module: how many decisions came before, whose code calls whom, the plain values that it hands on."""

    before: int
    caller: str
    called: str
    values: tuple[Any, ...]


@dataclass
class Tape:
    """The steps in order. Each tensor has a number; in-place operations give their tensor a new one.

    `leaves` are the parameters and buffers, `trained` the parameters among them, `whole` those of whole numbers (index
    tables), `outputs` what the model returned, `written` the leaves that the model itself wrote to.
    `sizes` are dimensions whose size came straight from an attribute of a module, `fixed` the attributes that were used
    in any other way, too. `decisions` are tensors whose values came into Python, `calls` those of modules, `seen` the
    tensors that the code of each module had in hand, `remarks` what the user should know.
    """

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    leaves: dict[int, str] = field(default_factory=dict)
    trained: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    outputs: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    sizes: dict[tuple[int, int], Attribute] = field(default_factory=dict)
    fixed: set[Attribute] = field(default_factory=set)
    decisions: list[Decision] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    seen: dict[str, set[int]] = field(default_factory=dict)
    remarks: set[str] = field(default_factory=set)

    def copy(self) -> Tape:
        """A copy on which a run can be tried."""
        parts = {part.name: copy.copy(getattr(self, part.name)) for part in dataclasses.fields(self)}
        return Tape(**parts | {"seen": {path: set(numbers) for path, numbers in self.seen.items()}})

    def handed_on(self) -> list[Decision]:
        """All decisions, and those that a module's code may know by a flag or number that it is called with."""
        found: list[Decision] = []
        for call in self.calls:
            if call.values and call.called != call.caller:
                known = (*self.decisions[: call.before], *found)
                found += [decision._replace(path=call.called) for decision in known if decision.path == call.caller]
        return [*self.decisions, *found]

    def used(self) -> Tape:
        """The tape without steps on which no output depends, such as attention weights that nobody asks for.

        What the model's code decides on counts as an output, unless it is the same for all inputs.
        """
        varying = set(range(len(self.shapes))) - self.leaves.keys() | self.trained | self.written
        for step in self.steps:
            if varying.isdisjoint(step.inputs):
                varying.difference_update(step.outputs)
        decisions = [decision for decision in self.handed_on() if decision.number in varying]
        outputs = self.outputs | {decision.number for decision in decisions}
        needed = set(outputs)
        steps: list[Step] = []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.outputs):
                needed.update(step.inputs)
                steps.append(step)
        return dataclasses.replace(self, steps=steps[::-1], outputs=outputs, decisions=decisions, calls=[])


def number_of(tensor: Tensor, tape: Tape) -> int | None:
    """The number of a tensor on this tape, None where it has none."""
    owner, number = getattr(tensor, NUMBER, (None, None))
    return number if owner is tape else None


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, a tied one once under its first name."""
    named = dict([*model.named_parameters(), *model.named_buffers()])
    first = {id(tensor): name for name, tensor in reversed(named.items())}
    return {name: tensor for name, tensor in named.items() if first[id(tensor)] == name}


def tensors_in(tree: Any, _seen: frozenset[int] = frozenset()) -> list[Tensor]:
    """All tensors in what a model returned: nested lists, mappings, data classes and other plain objects."""
    if isinstance(tree, Tensor):
        return [tree]
    plain = str | bytes | int | float | complex | torch.dtype | torch.device | type
    if tree is None or isinstance(tree, plain) or id(tree) in _seen:
        return []
    if isinstance(tree, Mapping):
        parts: Iterable[Any] = tree.values()
    elif isinstance(tree, list | tuple | set | frozenset):
        parts = tree
    else:
        parts = getattr(tree, "__dict__", {}).values()
    return [tensor for part in parts for tensor in tensors_in(part, _seen | {id(tree)})]


def mark_outputs(tape: Tape, outputs: Any) -> None:
    """Note the tensors that the model returned."""
    numbers = [number_of(tensor, tape) for tensor in tensors_in(outputs)]
    tape.outputs.update(number for number in numbers if number is not None)


def never_zero(x: Tensor, remark: str) -> Tensor:
    """The same tensor, which counts as nonzero everywhere on a tape; the remark says why."""
    tape, _ = getattr(x, NUMBER, (None, None))
    if isinstance(tape, Tape):
        tape.remarks.add(remark)
    return torch.where(torch.ones((), dtype=torch.bool, device=x.device), x, x)
