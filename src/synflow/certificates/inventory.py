"""The fate of every parameter of a model: pruned, emptied, never run, or not pruned and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..masks.checks import some
from ..network.private_copy import arguments, device_of, isolated, move, run_untouched
from ..network.selection import prunable, weight_normed
from ..support.private_torch import pytree
from ..support.torch_modes import SafeMode

PRUNED, EMPTIED, NEVER_RUN = "pruned", "emptied", "never run"


@dataclass(frozen=True)
class Part:
    """Parameters with the same fate: `pruned`, `emptied`, `never run` (in eval mode), or the reason for not pruning."""

    fate: str
    names: tuple[str, ...]
    numel: int

    @property
    def left_dense(self) -> bool:
        """Whether the forward pass uses these parameters and they have no mask."""
        return self.fate not in (PRUNED, EMPTIED, NEVER_RUN)

    def __str__(self) -> str:
        return f"{self.fate} {self.numel:,} ({some(self.names, 3)})"


def inventory(model: nn.Module, masks: Mapping[str, Tensor], example: Any) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """The parts, which contain every parameter of the model once, and notes on surprising ones."""
    parameters, notes = dict(model.named_parameters()), list[str]()
    try:
        read = run_untouched(model, lambda twin: _read(twin, example))
    except Exception as cause:
        read = set(parameters)
        notes.append(f"the example does not run ({cause}), so parameters that are never run could not be found")
    if idle := [name for name in masks if name not in read]:
        notes.append(
            f"the forward pass in eval mode does not run {some(idle, 3)}, so no flow passes there and these weights "
            "are pruned first; if training runs them (an auxiliary head), keep them with protect=[...]"
        )
    reasons = _reasons(model)
    fates: dict[str, list[str]] = {PRUNED: [], EMPTIED: [], NEVER_RUN: []}
    for name, parameter in parameters.items():
        if name not in read:
            fate = NEVER_RUN
        elif name in masks:
            fate = PRUNED if bool(masks[name].any()) else EMPTIED
        else:
            fate = reasons(name, parameter)
        fates.setdefault(fate, []).append(name)
    parts = (Part(fate, tuple(names), sum(parameters[name].numel() for name in names)) for fate, names in fates.items())
    return tuple(part for part in parts if part.names), tuple(notes)


def inventory_text(parts: tuple[Part, ...]) -> str:
    """One sentence whose counts add up to the number of the model's parameters."""
    said = [str(part) for part in parts if not part.left_dense]
    dense = [part for part in parts if part.left_dense]
    if dense:
        said.append(f"not pruned {sum(p.numel for p in dense):,}: " + ", ".join(map(str, dense)))
    return f"{sum(part.numel for part in parts):,} in all: " + "; ".join(said)


def _read(twin: nn.Module, example: Any) -> set[str]:
    """The parameters that a forward pass in eval mode hands to some operation."""
    parameters = {id(parameter): name for name, parameter in twin.named_parameters()}
    device = device_of(twin)
    args, kwargs = arguments(move(example, device))
    with isolated(0, device), torch.no_grad(), _Watch() as watch:
        twin.eval()(*args, **kwargs)
    return {name for key, name in parameters.items() if key in watch.seen}


class _Watch(SafeMode):
    """Keeps the ids of all tensors that operations are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") != "__get__":  # the shape or device of a tensor is not its values
            self.seen |= {id(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        return func(*args, **(kwargs or {}))


def _reasons(model: nn.Module) -> Callable[[str, Tensor], str]:
    """Why a parameter that the model runs has no mask."""
    normed = weight_normed(model)
    modules = dict(model.named_modules())
    try:
        default = set(prunable(model))
    except ValueError:  # nothing in the model is pruned by default
        default = set()

    def reason(name: str, parameter: Tensor) -> str:
        owner = modules[name.rpartition(".")[0]]
        if name in normed:
            return "under a weight norm"
        if name in default:
            return "not selected or protected"
        if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
            return "embeddings"
        if ".parametrizations." in f".{name}":
            return "parametrized"
        if parameter.dim() < 2:
            return "biases, norms and other vectors"
        return "parameters of no known layer, which select=[...] would name"

    return reason
