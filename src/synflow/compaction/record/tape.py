"""What a model computes, written down operation by operation while it runs.

The recording happens below autograd, where every model, however it is written, comes down to a few dozen ATen
operations on real tensors: nothing is traced symbolically, so no model is refused for its Python code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...support import windows

__all__ = ["Ref", "Step", "Tape", "mark_outputs", "recording", "tensors_in"]

_NUMBER = "_synflow_number"
_CONVOLUTION = "aten::convolution"
_KEPT_CONSTANTS = 1 << 22


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

    `leaves` are the parameters and buffers, `constants` the integer tensors that steps read (index tables),
    `outputs` what the model returned, `written` the leaves that the model itself wrote to.
    """

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    leaves: dict[int, str] = field(default_factory=dict)
    constants: dict[int, Tensor] = field(default_factory=dict)
    outputs: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)

    def length(self) -> tuple[int, int]:
        """How much is on the tape, to come back to with `cut_back`."""
        return len(self.steps), len(self.shapes)

    def cut_back(self, length: tuple[int, int]) -> None:
        """Forget what was recorded since."""
        del self.steps[length[0] :]
        self.outputs = {number for number in self.outputs if number < length[1]}

    def used(self) -> Tape:
        """The same without steps on which no output depends, such as attention weights that nobody asks for."""
        needed = set(self.outputs)
        steps: list[Step] = []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.outputs):
                needed.update(step.inputs)
                steps.append(step)
        return dataclasses.replace(self, steps=steps[::-1])


_Place = tuple[tuple[int, ...], tuple[int, ...], int]


def _overlap(one: _Place, other: _Place) -> bool:
    """Do two views of a storage share an element? Halves of a tensor don't, though they share the storage."""

    def end(place: _Place) -> int:
        return place[2] + sum((size - 1) * stride for size, stride in zip(*place[:2], strict=True)) + 1

    seen = torch.zeros(max(end(one), end(other)), dtype=torch.bool)
    seen.as_strided(*one).fill_(True)
    return bool(seen.as_strided(*other).any())


def number_of(tensor: Tensor, tape: Tape) -> int | None:
    """The number a tensor has on this tape; what other tapes have left on it does not count."""
    owner, number = getattr(tensor, _NUMBER, (None, None))
    return number if owner is tape else None


class _Recorder(TorchDispatchMode):
    def __init__(self, tape: Tape, hollow: bool = False) -> None:
        super().__init__()
        self.tape, self.hollow = tape, hollow
        self.path: list[str] = [""]
        self.training = False
        self.storages: dict[int, list[int]] = {}
        self.places: dict[int, _Place] = {}
        self.stale: dict[int, list[int]] = {}  # storage written through other tensors, these

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    def number(self, tensor: Tensor) -> int:
        number = number_of(tensor, self.tape)
        if number is None:
            number = self.new_number(tensor)
            if not tensor.is_floating_point() and tensor.numel() <= _KEPT_CONSTANTS:
                self.tape.constants[number] = tensor.detach().clone()
        elif number in self.stale:
            writers = [w for w in self.stale.pop(number) if _overlap(self.places[number], self.places[w])]
            if writers:
                read = (number, *writers)
                number = self.new_number(tensor)
                self.tape.steps.append(Step("overwritten", None, {}, read, (number,), self.path[-1], self.training))
        return number

    def new_number(self, tensor: Tensor) -> int:
        number = len(self.tape.shapes)
        self.tape.shapes.append(tuple(tensor.shape))
        setattr(tensor, _NUMBER, (self.tape, number))
        with contextlib.suppress(RuntimeError, NotImplementedError):  # tensors without storage have no aliases either
            self.storages.setdefault(tensor.untyped_storage().data_ptr(), []).append(number)
            self.places[number] = (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        return number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        named = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        for argument in schema.arguments:
            if argument.name not in named and argument.has_default_value():
                named[argument.name] = argument.default_value
        read: list[int] = []

        def refer(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                read.append(self.number(leaf))
                return Ref(read[-1])
            return leaf

        by_name = {name: pytree.tree_map(refer, value) for name, value in named.items()}
        result = _zeros(*args, **kwargs) if self.hollow and schema.name == _CONVOLUTION else func(*args, **kwargs)
        for argument in schema.arguments:
            written = named.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(written, Tensor):
                self.write(written)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and not any(tensor is a for a in named.values()):
                self.new_number(tensor)
        made = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        outputs = tuple(self.number(t) for t in made)
        for tensor in made:  # index tables are needed to say what they pick
            if not tensor.is_floating_point() and tensor.numel() <= _KEPT_CONSTANTS:
                self.tape.constants[self.number(tensor)] = tensor.detach().clone()
        name = func._schema.name.split("::")[1]
        name = name.removesuffix("_") if not name.startswith("__") else name
        self.tape.steps.append(Step(name, func, by_name, tuple(read), outputs, self.path[-1], self.training))
        return result

    def write(self, tensor: Tensor) -> None:
        old = self.number(tensor)
        if old in self.tape.leaves:
            self.tape.written.add(old)
        number = self.new_number(tensor)
        sharing = self.storages.get(tensor.untyped_storage().data_ptr(), [])
        for other in sharing:
            if other not in (old, number):
                self.stale.setdefault(other, []).append(number)


def _zeros(
    x: Tensor, weight: Tensor, _bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any,
    groups: int,
) -> Tensor:  # fmt: skip
    """What a convolution returns, without its values."""
    sizes = []
    for dim, length in enumerate(x.shape[2:]):
        step, pad, apart, more = (each[dim if len(each) > 1 else 0] for each in (stride, padding, dilation, extra))
        width = weight.shape[2 + dim]
        # The other way round it is the image from which as many windows would be cut, and some more.
        whole = (length - 1) * step - 2 * pad + apart * (width - 1) + 1 + more
        sizes.append(whole if transposed else windows.count(length, width, step, pad, apart))
    return x.new_zeros(len(x), weight.shape[1] * groups if transposed else len(weight), *sizes)


@contextlib.contextmanager
def recording(model: nn.Module, tape: Tape, training: bool, hollow: bool = False) -> Iterator[None]:
    """Write down what happens inside, in one of the two modes; a second recording goes on on the same tape.

    With `hollow`, convolutions, which take most of the time and on whose values models do not decide, return zeros.

    The model must be a copy of one's own: running it writes to its buffers, and tensors get an attribute. What the
    caller passes on as the model's outputs is recorded with `mark_outputs`.
    """
    recorder = _Recorder(tape, hollow)
    recorder.training = training
    known = {name: number for number, name in tape.leaves.items()}
    for name, tensor in _leaves(model):
        number = known.get(name, len(tape.shapes))
        if name not in known:
            tape.shapes.append(tuple(tensor.shape))
            tape.leaves[number] = name
            if not tensor.is_floating_point():
                tape.constants[number] = tensor.detach().clone()
        setattr(tensor, _NUMBER, (tape, number))
    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(functools.partial(_enter, recorder.path, path)))
        hooks.append(module.register_forward_hook(functools.partial(_leave, recorder.path), always_call=True))
    modes = {module: module.training for module in model.modules()}
    try:
        model.train(training)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), recorder:
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
        for _, tensor in _leaves(model):
            delattr(tensor, _NUMBER)


def _enter(stack: list[str], path: str, *_: Any) -> None:
    stack.append(path)


def _leave(stack: list[str], *_: Any) -> None:
    stack.pop()


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


def _leaves(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, a tied one once under its first name."""
    seen: set[int] = set()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor
