"""What a model computed: its operations in order, and what its code did besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .attributes import Attribute

__all__ = ["NUMBER", "Ref", "Step", "Tape", "mark_outputs", "never_zero", "number_of", "tensors_in"]

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
    training: bool

    def ref(self, name: str) -> int | None:
        """The number of a tensor argument, None where it was not given."""
        value = self.args.get(name)
        return value.number if isinstance(value, Ref) else None


@dataclass
class Tape:
    """The steps in order. Each tensor has a number; in-place operations give their tensor a new one.

    `leaves` are the parameters and buffers, `trained` the parameters among them, `whole` those of whole numbers (index
    tables), `outputs` what the model returned, `written` the leaves that the model itself wrote to.
    `sizes` are dimensions whose size came straight from an attribute of a module, `fixed` the attributes that were used
    in any other way, too. `decisions` are tensors whose values came into Python, with the module that ran, `seen` the
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
    decisions: list[tuple[int, str]] = field(default_factory=list)
    seen: dict[str, set[int]] = field(default_factory=dict)
    remarks: set[str] = field(default_factory=set)

    def length(self) -> tuple[int, int]:
        """How much is on the tape, to come back to with `cut_back`."""
        return len(self.steps), len(self.shapes)

    def cut_back(self, length: tuple[int, int]) -> None:
        """Forget what was recorded since."""
        del self.steps[length[0] :]
        self.outputs = {number for number in self.outputs if number < length[1]}
        self.decisions = [(number, path) for number, path in self.decisions if number < length[1]]

    def used(self) -> Tape:
        """The same without steps on which no output depends, such as attention weights that nobody asks for.

        What the model's code decides on counts as an output, unless it is the same for all inputs.
        """
        varying = {number for number in range(len(self.shapes)) if number not in self.leaves}
        varying |= self.trained | self.written
        for step in self.steps:
            if varying.isdisjoint(step.inputs):
                varying.difference_update(step.outputs)
        decisions = [(number, path) for number, path in self.decisions if number in varying]
        outputs = self.outputs | {number for number, _ in decisions}
        needed = set(outputs)
        steps: list[Step] = []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.outputs):
                needed.update(step.inputs)
                steps.append(step)
        return dataclasses.replace(self, steps=steps[::-1], outputs=outputs, decisions=decisions)


def number_of(tensor: Tensor, tape: Tape) -> int | None:
    """The number a tensor has on this tape; what other tapes have left on it does not count."""
    owner, number = getattr(tensor, NUMBER, (None, None))
    return number if owner is tape else None


def tensors_in(tree: Any, _seen: frozenset[int] = frozenset()) -> list[Tensor]:
    """All tensors in what a model returned: nested lists, mappings, data classes and other plain objects."""
    if isinstance(tree, Tensor):
        return [tree]
    if tree is None or isinstance(tree, str | bytes | int | float | complex | torch.dtype | torch.device | type):
        return []
    if id(tree) in _seen:
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
    for tensor in tensors_in(outputs):
        if (number := number_of(tensor, tape)) is not None:
            tape.outputs.add(number)


def never_zero(x: Tensor, remark: str) -> Tensor:
    """The same tensor, which counts as nonzero everywhere on a tape; the remark says why."""
    tape, _ = getattr(x, NUMBER, (None, None))
    if isinstance(tape, Tape):
        tape.remarks.add(remark)
    return torch.where(torch.ones((), dtype=torch.bool, device=x.device), x, x)
