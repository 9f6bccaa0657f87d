"""Masks on a network: attach them, train with them, remove them.

`attach` sets the pruned weights to zero in place and masks them wherever they are read (see `masked_modules`). Masks
are boolean buffers beside the weights, so they follow `.to(device)` and are part of the `state_dict`. A checkpoint of
an attached model holds the pruned network, zeros included, under the dense names.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from ..network.wrappers import dense_name, unwrap
from ..support.chunked import count
from ..support.random_state import random_order
from .aliases import forget_aliases, guard_aliases
from .checks import check_boolean, check_mapping, check_masks, named_weights, places, some
from .masked_modules import MASK_SUFFIX, hold, mask_of, masked_names, release, unmasked_module

Model = TypeVar("Model", bound=nn.Module)


def attach(model: Model, masks: Mapping[str, Tensor]) -> Model:
    """Prune the model in place and keep it pruned: `weight = mask * weight` wherever a weight is read.

    Existing and new optimizers work, since every Parameter stays the same object under the same name.
    Attaching again may prune more weights but restores none. An error leaves the model unchanged.

    >>> layer = attach(nn.Linear(2, 2, bias=False), {"weight": torch.tensor([[True, False], [False, True]])})
    >>> layer
    Linear(in_features=2, out_features=2, bias=False, density=0.5)
    >>> layer.weight[0, 1].item()
    0.0
    """
    check_masks(masks, model)
    for name, current in attached(model).items():
        revived = int((masks[name].to(current.device) & ~current).sum()) if name in masks else 0
        if revived:
            raise SynflowError(
                f"{name}: the new mask keeps {revived} weights that the attached mask has pruned, and their values are "
                "gone; attach `mask & synflow.attached(model)[name]`, or start over: synflow.bake(model), "
                "synflow.rewind(model, state), synflow.attach(model, masks)"
            )
    _hold(model, masks)
    return model


def attached(model: nn.Module) -> dict[str, Tensor]:
    """The masks of a model, by parameter name; empty for a plain model."""
    return {
        name: mask_of(first.module, first.attribute).clone()
        for name, (first, *_) in places(model).items()
        if first.attribute in masked_names(first.module)
    }


def bake(model: nn.Module) -> dict[str, Tensor]:
    """Take the masks off and leave a plain model: zeros in place, its own classes, parameters and state_dict keys.

    Returns the masks, so that `attach(model, bake(model))` changes nothing.
    """
    masks = attached(model)
    for module in list(model.modules()):
        if masked_names(module):
            release(module)
        forget_aliases(module)
    return masks


@contextmanager
def unmasked(model: nn.Module) -> Iterator[None]:
    """Write to weights of an attached model: inside, layers show their parameters; at the end pruned ones are zeroed.

    >>> layer = attach(nn.Linear(2, 1, bias=False), {"weight": torch.tensor([[True, False]])})
    >>> with unmasked(layer), torch.no_grad():
    ...     layer.weight += 10 * torch.ones(1, 2)
    >>> layer.weight[0, 0].item() > 5, layer.weight[0, 1].item()
    (True, 0.0)
    """
    with ExitStack() as stack:
        for module in list(unwrap(model).modules()):
            if masked_names(module):
                stack.enter_context(unmasked_module(module))
        yield


def rewind(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Restore the weights and buffers, not the masks, from an earlier state_dict, to the bit.

    The state may come from the dense or the attached model. If its names, shapes or dtypes differ from the model's,
    nothing is changed.
    """
    if _masks_in(state) and not attached(model):
        raise SynflowError(
            "this state was saved with masks, but the model has none, so pruned weights would grow back in training; "
            "use synflow.load_state(model, state), which attaches them, or attach the masks before rewinding"
        )
    unwrap(model).load_state_dict(_checked_state(model, state))


def load_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state_dict, saved with masks or without, into a model with masks or without.

    Masks in the state replace the model's masks of the same weights; other masks of the model stay. If names, shapes or
    dtypes differ from the model's, nothing is changed.
    """
    first_names = {place.name: name for name, held in places(model).items() for place in held}
    stored, masks = _masks_in(state), dict[str, Tensor]()
    for name, mask in stored.items():
        masks.setdefault(first_names.get(name, name), mask)
    check_masks(masks, model)
    for name, mask in stored.items():
        first = first_names[name]
        if not (isinstance(mask, Tensor) and torch.equal(mask, masks[first])):
            raise SynflowError(f"{name} is tied to {first}, but the state has another mask for it; nothing was loaded")
    weights = _checked_state(model, state)
    _hold(model, masks)
    unwrap(model).load_state_dict(weights)


def density(masks: Mapping[str, Tensor]) -> float:
    """The kept share of the masked weights; 1 without masks.

    >>> density({"a": torch.tensor([True, False]), "b": torch.tensor([False, False])})
    0.25
    """
    check_mapping(masks, "; of a model: density(attached(model))")
    for name, mask in masks.items():
        check_boolean(name, mask)
    total = sum(mask.numel() for mask in masks.values())
    return count(masks) / total if total else 1.0


def shuffle(masks: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Permute each mask at random: every layer keeps its density, but the choice of weights is lost.

    Depends only on the seed and the names, not on the order of the masks, the device or the global random state.

    >>> density(shuffle({"a": torch.tensor([True, False, False, False])}, seed=1))
    0.25
    """
    check_mapping(masks)
    result: dict[str, Tensor] = copy.copy(masks) if isinstance(masks, dict) else {}  # a subclass holds more than masks
    for name, mask in masks.items():
        check_boolean(name, mask)
        order = random_order(seed, name, mask.numel()).to(mask.device)
        result[name] = mask.flatten()[order].view(mask.shape)
    if isinstance(getattr(masks, "about", None), dict):
        result.about = {**masks.about, "shuffled": seed}  # type: ignore[attr-defined]
    return result


def fingerprint(model: nn.Module) -> str:
    """A hash of the names and shapes of all parameters, in any order: equal for equal architectures.

    >>> fingerprint(nn.Linear(2, 3)) == fingerprint(nn.Linear(2, 3)) != fingerprint(nn.Linear(3, 2))
    True
    """
    return fingerprint_of({name: list(weight.shape) for name, weight in named_weights(model).items()})


def fingerprint_of(shapes: Mapping[str, list[int]]) -> str:
    return hashlib.sha256(json.dumps(sorted(shapes.items())).encode()).hexdigest()


def _hold(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    found = places(model)
    for name, mask in masks.items():
        for place in found[name]:
            hold(place.module, place.attribute, mask)
    guard_aliases(model, masks)


def _masks_in(state: Mapping[str, Any]) -> dict[str, Tensor]:
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise SynflowError(f"a state is a dict of tensors by name, as state_dict() gives, got {type(state).__name__}")
    return {dense_name(key).removesuffix(MASK_SUFFIX): state[key] for key in state if key.endswith(MASK_SUFFIX)}


def _kind(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _checked_state(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state under the model's own keys, without masks; an error if a key is missing, extra or of another shape."""
    own = {key: value for key, value in unwrap(model).state_dict().items() if not key.endswith(MASK_SUFFIX)}
    keys = {dense_name(key): key for key in own}
    given = {dense_name(key): value for key, value in state.items() if not key.endswith(MASK_SUFFIX)}
    missing, unexpected = [key for key in keys if key not in given], [key for key in given if key not in keys]
    if missing or unexpected:
        parts = [f"lacks {some(missing)}"] * bool(missing) + [f"has an unknown {some(unexpected)}"] * bool(unexpected)
        raise SynflowError(f"the state does not fit the model: it {' and '.join(parts)}; nothing was loaded")
    for name, value in given.items():
        wanted = own[keys[name]]
        if isinstance(wanted, Tensor) and _kind(value) != _kind(wanted):
            raise SynflowError(f"{name}: the state has {_kind(value)}, the model {_kind(wanted)}; nothing was loaded")
    return {keys[name]: value for name, value in given.items()}
