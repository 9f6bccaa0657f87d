"""Undocumented names of torch without a public replacement; all other modules import them from here.

`make test` runs with the version of torch in `constraints.txt`; if a later version moves a name, change it here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.modules.dropout import _DropoutNd as DropoutNd
from torch.nn.utils.parametrizations import _SpectralNorm as SpectralNormParametrization
from torch.nn.utils.parametrizations import _WeightNorm as WeightNormParametrization
from torch.nn.utils.spectral_norm import SpectralNorm as SpectralNormHook
from torch.nn.utils.weight_norm import WeightNorm as WeightNormHook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "NEWER_CHECKPOINT", "BatchNorm", "ConvNd", "DisableTorchFunction", "DisableTorchFunctionSubclass", "DispatchMode",
    "DropoutNd", "NormBase", "SpectralNormHook", "SpectralNormParametrization", "StorageWeakRef", "WeightNormHook",
    "WeightNormParametrization", "behind_transforms", "disabled_torch_function", "modes_entered", "onednn_linear",
    "pop_mode", "pytree", "set_gradients", "storage_id", "written",
]  # fmt: skip

# `pytree` walks nested inputs and outputs; `torch.utils.pytree`, its public form, is newer than the oldest torch here.
# `WeightNormHook`, `WeightNormParametrization` and those of spectral norm show that a weight is divided by a norm.
# `ConvNd`, `BatchNorm` and `NormBase` are the base classes of convolutions, of batch norms, of batch and instance
# norms, and of dropouts, of every dimension.
# `StorageWeakRef` keeps the identity of a storage from being used again, but not its memory.

# The generator around a checkpointed call with `use_reentrant=False`, in `torch.utils.checkpoint`.
NEWER_CHECKPOINT = "_checkpoint_without_reentrant_generator"

# A context in which `__torch_function__` of tensor subclasses is not called: used inside their own rules.
DisableTorchFunction: Any = torch._C.DisableTorchFunction

# The same for subclasses alone; function modes stay active.
DisableTorchFunctionSubclass: Any = torch._C.DisableTorchFunctionSubclass

# The value of `__torch_function__` of a tensor subclass that leaves every operation to torch.
disabled_torch_function: Any = torch._C._disabled_torch_function_impl


# `onednn_linear(x, weight, None, "none", [], "")` is x @ weight.T by oneDNN, which torch leaves to another library
# (MKL); the compiler of torch uses it. None where torch was built without oneDNN.
onednn_linear: Any = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
)


class DispatchMode(TorchDispatchMode):
    """Sees every tensor operation below autograd: for recordings, tapes and counts of memory."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments, or lists of them, into which an operation below autograd writes."""
    return [args[place] if place < len(args) else kwargs.get(name) for place, name in _written_places(func)]


@cache
def _written_places(func: Any) -> list[tuple[int, str]]:
    """Positions and names of the written arguments, looked up once per kind of operation: torch takes its time."""
    arguments = enumerate(func._schema.arguments)
    return [(place, one.name) for place, one in arguments if one.alias_info is not None and one.alias_info.is_write]


def modes_entered() -> int:
    """The depth of torch's stack of function modes; it shows modes that an interrupt left active."""
    depth: int = torch._C._len_torch_function_stack()
    return depth


def pop_mode() -> None:
    """Pop the last function mode off torch's stack."""
    torch._C._pop_torch_function_stack()


def storage_id(tensor: Tensor) -> int:
    """The identity of the memory of a tensor, the same for all its views; empty tensors all have the address zero."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def set_gradients(enabled: bool) -> None:
    """Switch gradients on or off without a context manager, which would be too slow for each operation."""
    torch._C._set_grad_enabled(enabled)


def behind_transforms(value: Any) -> Any:
    """The value inside the wrappers of `torch.vmap` and other transforms; without wrappers the value itself."""
    if torch._C._are_functorch_transforms_active():
        while isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
            value = torch._C._functorch.get_unwrapped(value)
    return value
