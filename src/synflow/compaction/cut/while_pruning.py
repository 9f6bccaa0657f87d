"""Cutting a network down while it is being pruned: traced once, cut as often as units die, values not compared.

This is for scores, which are taken of a network as it is, not for training: a unit may go when its flow is zero or is
read by nobody. The flow of the cut network is that of the masked one, and so are the scores of the weights that are
left; those of the weights that were cut are zero.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ...network.private_copy import arguments, private_copy
from ...support.random_state import seeded
from ..reason.coupling import Coupling
from ..reason.coupling_rules import couple
from ..reason.liveness import alive_as_it_is
from ..reason.removal import choose_units, less_and_less
from ..record.recorder import recording
from ..record.tape import Tape, mark_outputs, tensors_in
from .attention import open_attentions
from .plan import kept_indices, remembered_sizes
from .surgery import Indices, shrink, size, tensors

__all__ = ["Cut", "Outline", "cut_down", "outline"]

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Outline:
    """What is known of a model before there are masks: its operations in eval mode, and what shrinks together."""

    model: nn.Module
    example: Any
    coupling: Coupling


@dataclass(frozen=True)
class Cut:
    """Kept indices by parameter or buffer and dimension, for all that shrank; sizes that modules remember."""

    kept: dict[str, dict[int, Indices]]
    attributes: dict[str, dict[str, Any]]

    def apply(self, model: Model, hollow: Container[str] = ()) -> Model:
        """A smaller copy of a model; parameters that lose nothing are shared with it, `hollow` ones become zeros."""
        small = private_copy(model)
        shrink(small, self.kept, self.attributes, hollow)
        return small


def outline(model: nn.Module, example: Any) -> Outline:
    """Run a copy of the model once, in eval mode, and find out what shrinks together."""
    work = private_copy(model)
    flexible = open_attentions(work)
    tape = Tape()
    with recording(work, tape, training=False, hollow=True):
        mark_outputs(tape, _run(work, example))
    return Outline(work, example, couple(tape.used(), flexible))


def cut_down(known: Outline, masks: Mapping[str, Tensor], share: float = 1.0, check: bool = True) -> Cut:
    """What is left of a network under masks by the names of its parameters; nothing is cut where more than a share is.

    Where code reshapes to sizes of its own, so that the cut network would not run, heads and the like stay whole. That
    takes a run of it; without `check` the caller finds out.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> known = outline(model, torch.ones(1, 3))
    >>> cut = cut_down(known, {"2.weight": torch.tensor([[True, False, False, True]] * 2)})
    >>> cut.kept
    {'0.weight': {0: [0, 3]}, '0.bias': {0: [0, 3]}, '2.weight': {1: [0, 3]}}
    >>> cut.apply(model)[0]
    Linear(in_features=3, out_features=2, bias=True)
    """
    coupling = known.coupling
    alive = alive_as_it_is(coupling.tape, tensors(known.model), masks)
    for why, frozen in less_and_less(coupling, known.model):
        gone = choose_units(coupling, alive, frozen, why)
        kept, _ = kept_indices(coupling, gone)
        left = sum(size(mask.shape, kept.get(name, {})).numel() for name, mask in masks.items())
        if left > share * sum(mask.numel() for mask in masks.values()):
            break  # with more frozen, even more would be left
        cut = Cut(kept, remembered_sizes(known.model, coupling, gone))
        if not kept or not check or _runs(cut.apply(known.model, masks), known):
            return cut
    return Cut({}, {})


def _runs(small: nn.Module, known: Outline) -> bool:
    tape = known.coupling.tape
    with suppress(Exception):
        shapes = {tuple(t.shape) for t in tensors_in(_run(small, known.example)) if t.is_floating_point()}
        return shapes <= {tape.shapes[number] for number in tape.outputs}
    return False


def _run(model: nn.Module, example: Any) -> Any:
    args, kwargs = arguments(example)
    with seeded(0), torch.no_grad():
        return model.eval()(*args, **kwargs)
