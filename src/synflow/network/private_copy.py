"""A private copy of a model, in which scores replace weights; the user's model is never changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import SynflowError
from ..support.private_torch import DispatchMode, modes_entered, pytree, set_gradients, written
from ..support.random_state import SEEDING, seeded
from ..support.torch_modes import SafeMode, plain_tensors, pop_modes
from .checkpoints import without_checkpoints
from .module_state import forgetting
from .selection import Select, check_finite, prunable, slots
from .shared_memory import Substitution, address, reached_around
from .wrappers import unwrap

Loss = Callable[[Any, Any], Tensor]
Batch = tuple[Any, Any]
P = ParamSpec("P")
R = TypeVar("R")
Model = TypeVar("Model", bound=nn.Module)


@dataclass
class Network:
    """The input of a score: the prunable weights by name, the example, the data, and a copy of the model to run.

    `weights` are the user's own tensors, detached: read them, do not write. `batches` raises an error without data.
    `seed` is for scores that draw random numbers; `constants` caches facts about other parameters for flow passes.
    """

    model: nn.Module
    weights: dict[str, Tensor]
    example: Any
    data: Iterable[Batch] | None = None
    loss: Loss = F.cross_entropy
    seed: int = 0
    score_name: str = "this score"
    _slots: dict[str, list[tuple[nn.Module, str]]] = field(default_factory=dict, repr=False)
    _originals: dict[str, nn.Parameter] = field(default_factory=dict, repr=False)  # held: ids stay unique
    _batches: list[Batch] | None = field(default=None, repr=False)
    _replaced: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _reached_around: bool = False
    constants: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
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
        """Replace the prunable weights of the copy by other tensors."""
        for name, tensor in weights.items():
            self._replaced[id(self._originals[name])] = tensor
            for module, attribute in self._slots[name]:
                module._parameters[attribute] = tensor  # type: ignore[assignment]
        for module in self.model.modules():
            if isinstance(module, nn.RNNBase):
                module._flat_weights = [getattr(module, n) for n in module._flat_weights_names]

    def put_back(self) -> None:
        """Restore the original weights in the copy."""
        self.replace(self._originals)

    def call(self, inputs: Any) -> Any:
        """Run the copy on a tensor, a tuple of positional or a dict of keyword arguments; module state is restored."""
        args, kwargs = arguments(inputs)
        with ExitStack() as stack:
            if self._reached_around:
                stack.enter_context(Substitution(self._replaced))
            if any("_orig_mod" in module._modules for module in self.model.modules()):
                stack.enter_context(torch.compiler.set_stance("force_eager"))  # parts of the model are compiled
            stack.enter_context(without_checkpoints())
            stack.enter_context(forgetting(self.model))
            return self.model(*args, **kwargs)


@plain_tensors
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
    model = unwrap(model)
    chosen = prunable(model, select, protect)
    weights = {name: parameter.detach() for name, parameter in chosen.items()}
    for name, weight in weights.items():
        check_finite(name, weight)
    for name, parameter in model.named_parameters():
        plain = type(parameter) is nn.Parameter and parameter.layout == torch.strided and not parameter.is_meta
        if name not in chosen and plain and parameter.is_floating_point():
            check_finite(name, parameter.detach().clamp_min(torch.finfo(parameter.dtype).min))  # -inf is a mask
    twin = private_copy(model, chosen)
    network = Network(twin, weights, None, data, loss, seed, score_name, slots(twin, chosen), chosen)
    network._reached_around = reached_around(model, chosen)
    network.example = move(example, network.device)
    return network


def private_copy(model: Model, shared: Iterable[str] | None = None) -> Model:
    """A copy of the module tree that shares the named parameters (by default all); other tensors are its own."""
    names = None if shared is None else set(shared)
    memo: dict[int, Any] = {id(buffer): buffer.detach().clone() for buffer in model.buffers()}
    for name, parameter in model.named_parameters():
        share = names is None or name in names
        memo[id(parameter)] = parameter if share else nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    for module in model.modules():
        for value in vars(module).values():
            # A plain parameter as an attribute is an alias of a weight. Other tensors may be written to, and tensors
            # with a history (the weight under an old-style weight norm) cannot be deep-copied.
            if isinstance(value, Tensor):
                memo.setdefault(id(value), value if isinstance(value, nn.Parameter) else value.detach().clone())
    return _deepcopy(model, memo)


def whole_copy(model: Model) -> Model:
    """A copy that shares nothing, without torch's wrappers; works also for models that `copy.deepcopy` refuses."""
    model = unwrap(model)
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            # Tensors with a history (the weight under an old-style weight norm) cannot be deep-copied.
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    return _deepcopy(model, memo)


def _deepcopy(model: Model, memo: dict[int, Any]) -> Model:
    try:
        return copy.deepcopy(model, memo)
    except Exception as cause:
        raise SynflowError(
            f"{type(model).__name__} cannot be copied ({type(cause).__name__}: {cause}); synflow works on copies so "
            "that the model stays untouched: make it deep-copyable, e.g. by a __deepcopy__ on the offending attribute"
        ) from cause


class _WritesError(Exception):
    """A forward pass was about to write into a parameter."""


def run_untouched(model: nn.Module, run: Callable[[nn.Module], R]) -> R:
    """The result of a function that runs an unchanged copy of the model; no parameter of the model is written to.

    The copy shares the parameters. If its forward pass writes into one, the function gets a copy that shares nothing.
    """
    twin = private_copy(model)
    try:
        with _NoWrites(twin.parameters()), _NoSetting():
            return run(twin)
    except _WritesError:
        return run(whole_copy(model))


class _NoWrites(DispatchMode):
    """Refuses operations that write into the memory of some tensors, before they write."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._addresses = {address(tensor) for tensor in tensors} - {0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in pytree.tree_leaves(written(func, args, kwargs)):
            if isinstance(leaf, Tensor) and address(leaf) in self._addresses:
                raise _WritesError
        return func(*args, **kwargs)


class _NoSetting(SafeMode):
    """Refuses `parameter.data = tensor`, which no dispatch mode sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "__set__" and isinstance(args[0], nn.Parameter):
            raise _WritesError
        return func(*args, **(kwargs or {}))


@contextmanager
def isolated(seed: int, device: torch.device) -> Any:
    """Gradients on, autocast off, random numbers from the seed; restores the caller's modes and RNG afterwards."""
    autocast = torch.autocast(device.type if device.type != "meta" else "cpu", enabled=False)
    with torch.inference_mode(False), torch.enable_grad(), autocast, seeded(seed, device):
        yield


def restoring(function: Callable[P, R]) -> Callable[P, R]:
    """A second guard around `isolated`: a single Ctrl-C can skip the exit of one context, not of two."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with SEEDING:  # else the state may come from another thread's seed
            state, gradients = torch.get_rng_state(), torch.is_grad_enabled()
            depth = modes_entered()
            try:
                return function(*args, **kwargs)
            finally:
                pop_modes(depth)
                set_gradients(gradients)
                torch.default_generator.set_state(state)

    return run


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from the user's inputs, copied because a model may write into them."""
    inputs = pytree.tree_map(lambda x: x.clone() if type(x) is Tensor and not x.requires_grad else x, inputs)
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}


def device_of(model: nn.Module) -> torch.device:
    """Where a model computes: the device of its first parameter, the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@plain_tensors
def move(tree: Any, device: torch.device) -> Any:
    """The same nested arguments with all tensors on a device, and no inference tensors."""

    def fit(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_meta and device.type != "meta":
            raise SynflowError(f"a tensor on the meta device has no values; make the example on {device}")
        moved = leaf.to(device) if isinstance(leaf, Tensor) else leaf
        return moved.clone() if isinstance(moved, Tensor) and moved.is_inference() else moved

    # Convert other mappings (a tokenizer's output) to a dict, so that every tensor in them is found.
    return pytree.tree_map(fit, dict(tree) if isinstance(tree, Mapping) and not isinstance(tree, dict) else tree)


def _checked_batch(batch: Any, position: int) -> Batch:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        kind = f"{type(batch).__name__} of {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
        raise SynflowError(f"data: batch {position} is a {kind}, expected a pair (inputs, targets)")
    return batch[0], batch[1]
