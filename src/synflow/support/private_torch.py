"""The names that torch does not document and that nothing public replaces; all other modules take them from here.

`make test` runs with the version of torch in `constraints.txt`; when a later version moves a name, this file is the
place to follow it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.utils.parametrizations import _SpectralNorm as SpectralNormParametrization
from torch.nn.utils.parametrizations import _WeightNorm as WeightNormParametrization
from torch.nn.utils.spectral_norm import SpectralNorm as SpectralNormHook
from torch.nn.utils.weight_norm import WeightNorm as WeightNormHook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "NEWER_CHECKPOINT", "ConvNd", "DisableTorchFunction", "DisableTorchFunctionSubclass", "NormBase",
    "SpectralNormHook", "SpectralNormParametrization", "TorchDispatchMode", "WeightNormHook",
    "WeightNormParametrization", "behind_transforms", "disabled_torch_function", "modes_entered",
    "onednn_linear", "pop_mode", "pytree", "set_gradients",
]  # fmt: skip

# `pytree` walks nested inputs and outputs; `torch.utils.pytree`, its public form, is newer than the oldest torch here.
# `TorchDispatchMode` sees every tensor operation below autograd: for recordings, tapes and counts of memory.
# `WeightNormHook`, `WeightNormParametrization` and those of spectral norm show that a weight is divided by a norm.
# `ConvNd` and `NormBase` are what convolutions, and batch and instance norms, of every dimension have in common.

# The generator around a checkpointed call with `use_reentrant=False`, in `torch.utils.checkpoint`.
NEWER_CHECKPOINT = "_checkpoint_without_reentrant_generator"

# A context in which tensor subclasses are not asked how an operation is done: inside their own rules.
DisableTorchFunction: Any = torch._C.DisableTorchFunction

# The same for subclasses alone, while function modes stay in force.
DisableTorchFunctionSubclass: Any = torch._C.DisableTorchFunctionSubclass

# The value of `__torch_function__` of a tensor subclass that leaves every operation to torch.
disabled_torch_function: Any = torch._C._disabled_torch_function_impl


# `onednn_linear(x, weight, None, "none", [], "")` is x @ weight.T by oneDNN, which torch leaves to another library
# (MKL); the compiler of torch uses it. None where torch was built without oneDNN.
onednn_linear: Any = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
)


def modes_entered() -> int:
    """The depth of torch's stack of function modes, by which modes that an interrupt left behind are found."""
    depth: int = torch._C._len_torch_function_stack()
    return depth


def pop_mode() -> None:
    """Take the last function mode off torch's stack, whoever entered it."""
    torch._C._pop_torch_function_stack()


def set_gradients(enabled: bool) -> None:
    """Switch gradients on or off without a context, where building one for each operation takes too long."""
    torch._C._set_grad_enabled(enabled)


def behind_transforms(value: Any) -> Any:
    """What `torch.vmap` and other transforms have wrapped; outside of them the value itself."""
    if torch._C._are_functorch_transforms_active():
        while isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
            value = torch._C._functorch.get_unwrapped(value)
    return value
