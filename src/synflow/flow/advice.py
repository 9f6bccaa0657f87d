"""What to do about an operation that has no rule, by kind of operation, and where in the model it stands."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

_BRANCH = """
__bool__ item __float__ __int__ __index__ __complex__ tolist numpy __array__ any all equal allclose is_nonzero
""".split()
_WHOLE = """
long int short char byte bucketize searchsorted histc histogram bincount unique unique_consecutive one_hot digitize
""".split()
_MEMORY = "set_ resize_ resize_as_ as_strided_ swap_tensors".split()

_LINE = "    synflow.register_rule({name!r}, {rule})\n"


def advice(name: str, func: Any) -> str:
    """The way out, with a line to paste."""
    if name in _BRANCH:
        return (
            "The model decides in Python by values, and a flow has none. Decide by a shape or a setting, or answer for "
            "the flow: a rule for the comparison, such as\n"
            + _LINE.format(name="gt", rule="lambda function, x, *_: torch.ones_like(x, dtype=torch.bool)")
            + "or one for this operation. More under 'Python branches' in docs/howto/own-rule.md"
        )
    if name in _WHOLE:
        return (
            "It makes positions or counts of values, and a flow has none. Give the ones that the flow should see, such "
            "as\n" + _LINE.format(name=name, rule="lambda function, x, *_: torch.zeros_like(x, dtype=torch.long)")
        )
    if name in ("_pack_padded_sequence", "_pad_packed_sequence"):
        return (
            "Packed sequences have no stand-in. Prune with a forward pass that leaves the packing out (by a setting of "
            "the model): masks belong to the weights, and hold for packed batches as well"
        )
    if name in _MEMORY:
        return "It changes the memory of a tensor in place; write it with reshape, view or as_strided"
    if name.startswith("linalg_") or name in ("inverse", "det", "svd", "qr", "cholesky", "matrix_exp"):
        return (
            "A decomposition has no positive stand-in. If it is a scale and not a path, its input may stand in:\n"
            + _LINE.format(name=name, rule="synflow.rules.identity")
            + f"or pass a function of the same signature that returns a positive tensor of the right shape ({func!r})"
        )
    return (
        "If flow passes it like an activation, register one with\n"
        + _LINE.format(name=name, rule="synflow.rules.identity")
        + "or pass a function rule(function, *args, **kwargs) that returns its positive stand-in "
        f"(the operation is {func!r})"
    )


def innermost_module(modules: Mapping[nn.Module, str]) -> str:
    """The innermost of the modules that is running, by name and class."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and owner in modules:
            return f"module {modules[owner] or '(the model itself)'!r} ({type(owner).__name__})"
        frame = frame.f_back
    return "the model"
