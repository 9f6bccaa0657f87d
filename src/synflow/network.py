"""A private copy of a model on which weights can be replaced: whatever happens there, the user's model is untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .errors import SynflowError
from .selection import Select, check_finite, prunable, slots

Loss = Callable[[Any, Any], Tensor]
Batch = tuple[Any, Any]


@dataclass
class Network:
    """What a score sees: the prunable weights by name, the example, the data, and a copy of the model to run.

    `weights` are the user's own tensors, detached: read them, do not write. `batches` raises when no data was given.
    `seed` is for scores that draw random numbers.
    """

    model: nn.Module
    weights: dict[str, Tensor]
    example: Any
    data: Iterable[Batch] | None = None
    loss: Loss = F.cross_entropy
    seed: int = 0
    score_name: str = "this score"
    _slots: dict[str, list[tuple[nn.Module, str]]] = field(default_factory=dict, repr=False)
    _batches: list[Batch] | None = field(default=None, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self.weights.values())).device

    @property
    def size(self) -> int:
        """N, the number of prunable weights."""
        return sum(weight.numel() for weight in self.weights.values())

    @property
    def batches(self) -> list[Batch]:
        """The data, read once: every pass and every step sees the same batches."""
        if self.data is None:
            raise SynflowError(
                f"{self.score_name} needs data; pass data=[(inputs, targets), ...], e.g. a DataLoader of a few "
                "batches, or choose a data-free score such as 'synflow'"
            )
        if self._batches is None:
            batches = [_checked_batch(batch, position) for position, batch in enumerate(self.data)]
            if not batches:
                raise SynflowError("data is empty (an exhausted iterator?); pass a list or a DataLoader of batches")
            self._batches = [(move(inputs, self.device), move(targets, self.device)) for inputs, targets in batches]
        return self._batches

    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Put other tensors in the places of the prunable weights of the copy."""
        for name, tensor in weights.items():
            for module, attribute in self._slots[name]:
                module._parameters[attribute] = tensor  # type: ignore[assignment]
        for module in self.model.modules():
            if isinstance(module, nn.RNNBase):
                module._flat_weights = [getattr(module, n) for n in module._flat_weights_names]

    def call(self, inputs: Any) -> Any:
        """Run the copy on a tensor, a tuple of positional or a dict of keyword arguments."""
        args, kwargs = arguments(inputs)
        return self.model(*args, **kwargs)


def open_network(
    model: nn.Module,
    example: Any,
    *,
    select: Select = None,
    protect: str | Iterable[str] = (),
    data: Iterable[Batch] | None = None,
    loss: Loss = F.cross_entropy,
    seed: int = 0,
    score_name: str = "this score",
) -> Network:
    """Check a model and make the private copy that scores work on; tensors are shared until they are replaced."""
    if not isinstance(model, nn.Module):
        raise SynflowError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    chosen = prunable(model, select, protect)
    for name, parameter in chosen.items():
        check_finite(name, parameter.detach())
    twin = private_copy(model)
    names = dict(zip(chosen, chosen, strict=True))
    weights = {name: parameter.detach() for name, parameter in chosen.items()}
    network = Network(twin, weights, None, data, loss, seed, score_name, slots(twin, names))
    network.example = move(example, network.device)
    return network


def private_copy(model: nn.Module) -> nn.Module:
    """A copy of the module tree that shares the tensors; buffers are cloned, since a forward pass may write to them."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                memo[id(parameter)] = parameter
        for buffer in module._buffers.values():
            if buffer is not None:
                memo[id(buffer)] = buffer.detach().clone()
        for name, value in vars(module).items():
            # Non-leaf tensors kept as attributes (old-style weight norm) cannot be deep-copied, and need not be.
            if isinstance(value, Tensor) and name not in ("_parameters", "_buffers"):
                memo.setdefault(id(value), value.detach() if value.grad_fn is not None else value)
    try:
        return copy.deepcopy(model, memo)
    except Exception as cause:
        raise SynflowError(
            f"{type(model).__name__} cannot be copied ({type(cause).__name__}: {cause}); pruning works on a copy so "
            "that the model stays untouched: make it deep-copyable, e.g. by a __deepcopy__ on the offending attribute"
        ) from cause


@contextmanager
def isolated(seed: int, device: torch.device) -> Any:
    """Gradients on, autocast off, random numbers from the seed; the caller's modes and RNG come back afterwards."""
    devices = [device] if device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast(device.type if device.type != "meta" else "cpu", enabled=False))
        stack.enter_context(torch.random.fork_rng(devices=devices))
        torch.manual_seed(seed)
        yield


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from what the user gave as inputs."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple):
        return inputs, {}
    if isinstance(inputs, list):
        return tuple(inputs), {}
    return (inputs,), {}


def move(tree: Any, device: torch.device) -> Any:
    """The same nested arguments with all tensors on a device."""
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, _plain(tree))


def _plain(tree: Any) -> Any:
    """Mappings that are not dicts (a tokenizer's output) as dicts, so that every tensor in them is found."""
    return dict(tree) if isinstance(tree, Mapping) and not isinstance(tree, dict) else tree


def _checked_batch(batch: Any, position: int) -> Batch:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        kind = f"{type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
        raise SynflowError(f"data: batch {position} is a {kind}, expected a pair (inputs, targets)")
    return batch[0], batch[1]
