"""Running a model and writing down what it does.

The recording happens below autograd, where every model comes down to a few dozen ATen operations on real tensors:
nothing is traced symbolically, so no model is refused for its Python code. Above autograd, calls are watched for what
operations do not show: where sizes come from, and which values the code reads.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ...support.private_torch import DispatchMode, pytree, written
from .attributes import Attribute, asked_sizes, sizes_in, tagged
from .tape import NUMBER, Call, Decision, Ref, Step, Tape, number_of, tensors

# Operations (beside those that torch tags) and functions by which values of tensors come into Python, where code may
# decide on them; `nonzero` returns a tensor, whose size does.
_READING = {"is_nonzero", "nonzero"}
_READING_FUNCTIONS = {"tolist", "numpy", "__array__"}
# Functions by which Python learns the size of a tensor, beside the attribute `shape`.
_SIZES = {"size", "__len__", "numel", "nelement"}

FLAGS = {bool, int, float, str}  # types in which code can hand a decision on to a module that it calls

_Place = tuple[tuple[int, ...], tuple[int, ...], int]


def _overlap(one: _Place, other: _Place) -> bool:
    """Do two views of a storage share an element? Halves of a tensor don't, though they share the storage."""

    def end(place: _Place) -> int:
        return place[2] + sum((size - 1) * stride for size, stride in zip(*place[:2], strict=True)) + 1

    seen = torch.zeros(max(end(one), end(other)), dtype=torch.bool)
    seen.as_strided(*one).fill_(True)
    return bool(seen.as_strided(*other).any())


class _Recorder(DispatchMode):
    def __init__(self, tape: Tape, turned: bool) -> None:
        super().__init__()
        self.tape, self.turned = tape, turned
        self.path: list[str] = [""]
        self.storages: dict[int, list[int]] = {}
        self.places: dict[int, _Place] = {}
        self.stale: dict[int, list[int]] = {}  # tensors whose storage was written through these others
        self.uneven: dict[int, tuple[int, ...]] = {}  # tensors whose sizes depend on values, and the tensors with these

    def number(self, tensor: Tensor) -> int:
        number = number_of(tensor, self.tape)
        if number is None:
            number = self.new_number(tensor)
        elif number in self.stale:
            writers = [w for w in self.stale.pop(number) if _overlap(self.places[number], self.places[w])]
            if writers:
                read = (number, *writers)
                number = self.new_number(tensor)
                self.tape.steps.append(Step("overwritten", None, {}, read, (number,), self.path[-1]))
        return number

    def new_number(self, tensor: Tensor) -> int:
        number = len(self.tape.shapes)
        self.tape.shapes.append(tuple(tensor.shape))
        setattr(tensor, NUMBER, (self.tape, number))
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
        by_name = pytree.tree_map(lambda leaf: Ref(self.number(leaf)) if isinstance(leaf, Tensor) else leaf, named)
        read = [leaf.number for leaf in pytree.tree_leaves(by_name) if isinstance(leaf, Ref)]
        result = func(*args, **kwargs)
        changed = [t for t in pytree.tree_leaves(written(func, args, kwargs)) if isinstance(t, Tensor)]
        for tensor in changed:
            self.write(tensor)
        # What writes into a list of tensors (`_foreach_add_`) returns nothing.
        made = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)] or changed
        for tensor in made:
            if not any(tensor is a for a in named.values()):
                self.new_number(tensor)
        outputs = tuple(map(self.number, made))
        name = schema.name.split("::")[1]
        name = name if name.startswith("__") else name.removesuffix("_")
        self.tape.steps.append(Step(name, func, by_name, tuple(read), outputs, self.path[-1]))
        self.tape.seen.setdefault(self.path[-1], set()).update(read, outputs)
        self.note_uneven(func, args, read, outputs)
        if name not in _READING and torch.Tag.data_dependent_output not in func.tags:
            return result
        self.tape.decisions += [Decision(number, self.path[-1], isinstance(result, bool)) for number in read]
        return not result if self.turned and isinstance(result, bool) else result

    def note_uneven(self, func: Any, args: Any, read: list[int], outputs: tuple[int, ...]) -> None:
        """Note results whose sizes depend on values: `y[y > 0]`, and what is computed from it row by row."""
        sources = [self.uneven[number] for number in read if number in self.uneven]
        if torch.Tag.dynamic_output_shape in func.tags:
            flat = pytree.tree_leaves(args[1:])
            if func._schema.name != "aten::index" or any(isinstance(i, Tensor) and i.dtype is torch.bool for i in flat):
                sources.append(tuple(read))
        elif sources:
            rows = {self.tape.shapes[number][:1] for number in read if number in self.uneven}
            outputs = tuple(number for number in outputs if self.tape.shapes[number][:1] in rows)
        if sources:
            self.uneven.update((number, tuple({n for s in sources for n in s})) for number in outputs)

    def enter(self, path: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.hand_over(path, (args, kwargs))
        values = tuple(leaf for leaf in pytree.tree_leaves((args, kwargs)) if type(leaf) in FLAGS)
        self.tape.calls.append(Call(len(self.tape.decisions), self.path[-1], path, values))
        self.path.append(path)

    def leave(self, path: str, _: nn.Module, _args: tuple[Any, ...], result: Any) -> None:
        self.path.pop()
        self.hand_over(path, result)

    def hand_over(self, path: str, values: Any) -> None:
        """Note that caller and called module both have in hand what is passed between them."""
        given = [number_of(leaf, self.tape) for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
        numbers = {number for number in given if number is not None}
        for place in (path, self.path[-1]):
            self.tape.seen.setdefault(place, set()).update(numbers)

    def write(self, tensor: Tensor) -> None:
        old = self.number(tensor)
        if old in self.tape.leaves:
            self.tape.written.add(old)
        number = self.new_number(tensor)
        for other in self.storages.get(tensor.untyped_storage().data_ptr(), []):
            if other not in (old, number):
                self.stale.setdefault(other, []).append(number)


class _Calls(TorchFunctionMode):
    """Watches the calls in the model's code: which attributes give their sizes, and which values it reads."""

    def __init__(self, model: nn.Module, recorder: _Recorder) -> None:
        super().__init__()
        self.model, self.recorder = model, recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tape, path, name = self.recorder.tape, self.recorder.path[-1], getattr(func, "__name__", "")
        if name in _READING_FUNCTIONS:
            tape.decisions.append(Decision(self.recorder.number(args[0]), path, truth=False))
        if self.recorder.uneven and (name in _SIZES or getattr(func, "__self__", None) is Tensor.shape):
            asked_of = self.recorder.uneven.get(self.recorder.number(args[0]), ())
            tape.decisions += [Decision(number, path, truth=False) for number in asked_of]
        result = func(*args, **kwargs)
        sizes = sizes_in([*args, *kwargs.values()])
        if not sizes:
            return result
        made = [tensor for tensor in pytree.tree_leaves(result) if isinstance(tensor, Tensor)]
        asked = [row for row in asked_sizes(name, args, kwargs, made) if any(row[2] is size for size in sizes)]
        for tensor, dim, size in asked:
            if (number := number_of(tensor, tape)) is not None:
                tape.sizes[number, dim] = self.own(size.attribute, path, size)
        elsewhere = (size for size in sizes if not any(size is other for *_, other in asked))
        tape.fixed.update(self.own(size.attribute, path, size) for size in elsewhere)
        return result

    def own(self, attribute: Attribute, path: str, size: int) -> Attribute:
        """This module's attribute of the same value, for a number that a cache took from another module."""
        value = vars(self.model.get_submodule(path)).get(attribute.name)
        if attribute.place is not None:
            value = value[attribute.place] if type(value) is tuple and len(value) > attribute.place else None
        return attribute._replace(path=path) if value == size else attribute


@contextlib.contextmanager
def recording(model: nn.Module, tape: Tape, training: bool, turned: bool = False) -> Iterator[None]:
    """Record what happens inside, in one of the two modes; a second recording continues the same tape.

    With `turned`, each truth value of a tensor that the code asks for is the other one.

    The model must be a private copy: running it writes to its buffers, and tensors get an attribute. The caller notes
    the model's outputs with `mark_outputs`.
    """
    recorder = _Recorder(tape, turned)
    known = {name: number for number, name in tape.leaves.items()}
    for name, tensor in tensors(model).items():
        number = known.get(name, len(tape.shapes))
        if name not in known:
            tape.shapes.append(tuple(tensor.shape))
            tape.leaves[number] = name
            tape.trained.update([number] if isinstance(tensor, nn.Parameter) else [])
            tape.whole.update([] if tensor.is_floating_point() else [number])
        setattr(tensor, NUMBER, (tape, number))
    hooks = []
    for path, module in model.named_modules():
        enter, leave = functools.partial(recorder.enter, path), functools.partial(recorder.leave, path)
        hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    modes = {module: module.training for module in model.modules()}
    try:
        model.train(training)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), tagged(model), recorder, _Calls(model, recorder):
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
        for tensor in tensors(model).values():
            delattr(tensor, NUMBER)
