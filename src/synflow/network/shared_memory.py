"""Weights that a model can reach around their names: through its lists and objects, or through shared memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from ..support.nested import leaves, mapped
from ..support.torch_modes import SafeMode

# Attributes of a module that hold its parameters, buffers and submodules by their names.
_BY_NAME = ("_parameters", "_buffers", "_modules", "_flat_weights", "_flat_weight_refs")
# The most objects to search: more than a model has, fewer than a data set.
LOOKED_AT = 100_000
# An optimizer holds parameters to write to them; the model does not read weights through it.
_PASSED_BY = (str, bytes, type, ModuleType, torch.optim.Optimizer)


def held_beside(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Tensors that modules hold outside of parameters, buffers and submodules: the module, a path in it, the tensor.

    Searches containers, objects and functions, each once; a tensor appears once per place.
    """
    seen = {id(module) for module in model.modules()}
    waiting: deque[tuple[nn.Module, str, Any]] = deque()
    for module in model.modules():
        waiting += ((module, key, value) for key, value in vars(module).items() if key not in _BY_NAME)
    while waiting and len(seen) < LOOKED_AT:
        module, path, value = waiting.popleft()
        if isinstance(value, Tensor):
            yield module, path, value
        elif id(value) not in seen and not isinstance(value, _PASSED_BY):
            seen.add(id(value))
            waiting += ((module, path + step, inner) for step, inner in _inside(value))


def _inside(value: Any) -> Iterable[tuple[str, Any]]:
    """The objects inside an object, each with the path step that leads to it."""
    if isinstance(value, Mapping):
        return ((f"[{key!r}]", item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return ((f"[{position}]", item) for position, item in enumerate(value))
    if isinstance(value, FunctionType):
        held = (*map(_content, value.__closure__ or ()), *(value.__defaults__ or ()))
        return ((f" of {value.__name__}", item) for item in held)
    if isinstance(value, partial):
        return ((" of partial", item) for item in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, MethodType):
        return (("", value.__self__), ("", value.__func__))
    return ((f".{key}", item) for key, item in vars(value).items()) if hasattr(value, "__dict__") else ()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def address(tensor: Tensor) -> int:
    """The start address of a tensor's memory; zero for a tensor without one."""
    if tensor.layout != torch.strided or hasattr(tensor, "device_mesh"):  # sparse and sharded tensors have no address
        return 0
    return tensor.untyped_storage().data_ptr()


def overlapping(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Pairs of a weight and another tensor (or another weight) that share memory.

    Compares entry by entry, since slices of one tensor may be adjacent.
    """
    storages: dict[Any, tuple[dict[str, Tensor], dict[str, Tensor]]] = defaultdict(lambda: ({}, {}))
    for kind, tensors in enumerate((weights, others)):
        for name, tensor in tensors.items():
            storages[address(tensor), tensor.dtype][kind][name] = tensor
    for (start, _), (held, read) in storages.items():
        if start and held and len(held) + len(read) > 1:  # empty tensors and those on the meta device are all at zero
            yield from _overlapping(held, read)


def _overlapping(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """`overlapping` for tensors of one storage: each weight marks its entries with its number."""
    first, names = next(iter(weights.values())), list(weights)
    size = first.untyped_storage().nbytes() // first.element_size()
    owner = torch.zeros(size, dtype=torch.int32, device=first.device)
    for number, (name, tensor) in enumerate((*weights.items(), *others.items()), start=1):
        place = owner.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        entries = torch.bincount(place.flatten(), minlength=len(names) + 1).tolist()
        yield from ((other, name) for other, shared in zip(names, entries[1:], strict=True) if shared)
        if number <= len(names):
            place.fill_(number)


def check_unshared(chosen: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Refuse to prune a weight that shares memory with another parameter: zeros in one would be zeros in the other."""
    rest = {name: parameter for name, parameter in parameters.items() if name not in chosen}
    for one, other in overlapping(chosen, rest):
        raise SynflowError(
            f"{one} and {other} are two Parameters on the same memory, so neither can be pruned alone; tie them, so "
            "that they are one Parameter (b.weight = a.weight), or give each its own memory: "
            "nn.Parameter(weight.detach().clone())"
        )


def reached_around(model: nn.Module, chosen: Mapping[str, nn.Parameter]) -> bool:
    """Whether the model may read a prunable weight from a function or container instead of its registered place.

    The copy shares such functions (a patched forward, a hook) and weights in lists or other objects.
    """
    for module in model.modules():
        carried = (*vars(module).values(), *module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if any(isinstance(value, (FunctionType, partial)) for value in carried):
            return True
    weights = {id(parameter) for parameter in chosen.values()}
    return any(id(value) in weights for _, _, value in held_beside(model))


class Substitution(SafeMode):
    """Gives a copied model the replaced weights where it reads the weights of its original."""

    def __init__(self, replaced: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.replaced = replaced

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.entered and any(id(leaf) in self.replaced for leaf in leaves((args, kwargs))):
            args, kwargs = mapped(lambda leaf: self.replaced.get(id(leaf), leaf), (args, kwargs))
        return func(*args, **kwargs)
