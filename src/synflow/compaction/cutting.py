"""Cutting a network down while it is being pruned: traced once, cut as often as units die, nothing checked.

This is for scores, which are taken of a network as it is, not for training: a unit may go when its flow is zero or is
read by nobody. The flow of the cut network is that of the masked one, and so are the scores of the weights that are
left; those of the weights that were cut are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..network import arguments, private_copy
from .attention import open_attentions
from .coupling import Coupling
from .coupling_rules import couple
from .plan import POLICIES, kept_indices, remembered_sizes
from .proof import alive_as_it_is
from .removal import choose_units
from .surgery import Indices, shrink, tensors
from .tape import Tape, mark_outputs, recording

__all__ = ["Cut", "Outline", "cut_down", "outline"]

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Outline:
    """What is known of a model before there are masks: its operations in eval mode, and what shrinks together."""

    model: nn.Module
    coupling: Coupling


@dataclass(frozen=True)
class Cut:
    """Kept indices by parameter or buffer and dimension, for all that shrank; sizes that modules remember."""

    kept: dict[str, dict[int, Indices]]
    attributes: dict[str, dict[str, int]]

    def apply(self, model: Model) -> Model:
        """A smaller copy of a model; parameters that lose nothing are shared with it."""
        small = private_copy(model)
        shrink(small, self.kept, self.attributes)
        return small  # type: ignore[return-value]


def outline(model: nn.Module, example: Any) -> Outline:
    """Run a copy of the model once, in eval mode, and find out what shrinks together."""
    work = private_copy(model)
    flexible = open_attentions(work)
    tape, (args, kwargs) = Tape(), arguments(example)
    with torch.random.fork_rng(devices=[]), recording(work, tape, training=False):
        mark_outputs(tape, work(*args, **kwargs))
    return Outline(work, couple(tape.used(), flexible))


def cut_down(known: Outline, masks: Mapping[str, Tensor]) -> Cut:
    """What is left of a network under masks by the names of its parameters.

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
    gone = choose_units(coupling, alive)
    kept, _ = kept_indices(coupling, gone)
    return Cut(kept, remembered_sizes(known.model, coupling, gone, POLICIES[0]))
