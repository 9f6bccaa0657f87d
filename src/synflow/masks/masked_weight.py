"""The weight that a masked module shows: it reads like any tensor; a write into it raises an error.

A masked weight is computed at each reading, so a write into it would be lost. Torch calls `__torch_function__` of a
tensor's class for each operation; this class refuses the operations that write.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from ..errors import SynflowError
from ..support.private_torch import DisableTorchFunctionSubclass

# In-place operators have a form without the i (`__iadd__`, `__add__`); `__iter__` has none.
_OPERATORS = {name for name in dir(Tensor) if name.startswith("__i") and hasattr(Tensor, f"__{name[3:]}")}
# All methods that write into a tensor. Torch ends the names of such methods and functions with one underscore.
WRITES = sorted({name for name in dir(Tensor) if name.endswith("_") and not name.endswith("__")} | _OPERATORS)
# Copies, pickles and texts of the weight are those of a plain tensor.
_AS_PLAIN = {"__repr__", "__format__", "__deepcopy__", "__reduce_ex__"}


class MaskedWeight(Tensor):
    """The values of a masked weight."""

    # `torch.utils.swap_tensors` first checks slots: it refuses two tensors whose classes have different ones.
    __slots__ = ("_masked",)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse the assignment of a class, with which `swap_tensors` begins."""
        if name == "__class__":
            raise _lost("swap_tensors")
        super().__setattr__(name, value)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if _holds_masked(_written(func, name, args, kwargs)):
            raise _lost(name)
        if name == "detach" and sys._getframe(1).f_globals.get("__name__") == "torch.nn.parameter":
            raise SynflowError(
                "a Parameter or Buffer made of a masked weight could not be written to; make it of a copy: "
                "nn.Parameter(layer.weight.detach().clone())"
            )
        with DisableTorchFunctionSubclass():
            if name in _AS_PLAIN:
                return func(args[0].as_subclass(Tensor), *args[1:], **kwargs)
            return _guarded(func(*args, **kwargs), args)

    def set_(self, *_: Any, **__: Any) -> NoReturn:
        """The one method for which torch does not call `__torch_function__`."""
        raise _lost("set_")


class MaskedView(MaskedWeight):
    """A tensor that shares memory with a masked weight, such as a row; it may have its own gradient."""


def _lost(name: str) -> SynflowError:
    return SynflowError(
        f"{'an assignment' if name == '__set__' else repr(name)} writes into a masked weight, which is computed anew "
        "at each reading, so the write would be lost; write inside `with synflow.unmasked(model):`, or to the "
        "parameter itself, dict(model.named_parameters())[name], or use reset_parameters() or model.apply()"
    )


def _written(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments that an operation writes to."""
    if name == "__set__":
        values = getattr(func, "__self__", None) is Tensor.data
        return args[:1] if values or not isinstance(args[0], MaskedView) else ()
    if name == "requires_grad_" and (isinstance(args[0], MaskedView) or args[1:] == (args[0].requires_grad,)):
        return ()
    by_name = name.endswith("_") and not name.endswith("__")
    if by_name or name in _OPERATORS or name == "__setitem__" or kwargs.get("inplace"):
        return args[:1] or [kwargs.get(key) for key in ("input", "tensor", "self")]
    return kwargs.get("out")


def _holds_masked(tree: Any) -> bool:
    if isinstance(tree, (list, tuple)):
        return any(map(_holds_masked, tree))
    return isinstance(tree, MaskedWeight)


def _guarded(result: Any, args: Any) -> Any:
    """Refuse writes to a result that shares memory with a masked weight, a tensor or an array."""
    if isinstance(result, (list, tuple)):
        parts = [_guarded(part, args) for part in result]
        return type(result)(parts) if type(result) in (list, tuple) else result
    source = args[0] if args else None
    if isinstance(source, MaskedWeight):
        if type(result) is Tensor and _same_memory(result, source):
            return result.as_subclass(MaskedView)
        if isinstance(result, np.ndarray) and np.shares_memory(result, source.detach().numpy()):
            result.flags.writeable = False
    return result


def _same_memory(one: Tensor, other: Tensor) -> bool:
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0
    except NotImplementedError:  # tensors inside `torch.vmap` have no data pointer
        return False
