"""The smaller network: units that cannot be noticed from outside are removed, outputs and training stay the same.

The model runs once in each mode and its operations are recorded (`record`); what is always zero and which dimensions
shrink together give the largest removable set of units (`reason`); it is cut out (`cut`), and both networks are
compared in double precision (`verify`). `expand` is the way back.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from ..masks.attach import attach, bake
from ..masks.checks import check_masks
from ..network.private_copy import whole_copy
from ..support.torch_modes import with_gradients
from .cut.plan import kept_in_all
from .cut.surgery import cut, paste, shrink
from .record.tape import tensors
from .result import Compaction, compaction_of
from .trial import Trial

Model = TypeVar("Model", bound=nn.Module)


@with_gradients
def compact(model: Model, example: Any, masks: Mapping[str, Tensor] | None = None) -> Model:
    """A smaller copy of a masked model with the same outputs, now and at every step of training.

    `masks` default to the attached ones. A unit goes when nothing it sends is read, or when it always sends zero and
    would go on doing so in training; what cannot be proved stays, and `small.compaction` says why. The masks of the
    surviving weights are attached to the result. The model itself is not changed.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> masks = {"2.weight": torch.tensor([[True, False, False, True]] * 2)}
    >>> small = compact(model, torch.ones(1, 3), masks)
    >>> small
    Sequential(
      (0): Linear(in_features=3, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True, density=1.0)
    )
    >>> small.compaction.kept["0.weight"]
    {0: [0, 3]}
    """
    masked, masks = _masked_copy(model, masks)
    earlier = vars(masked).pop("compaction", None)
    compaction = Trial(masked, masks, example).solve()
    shrink(masked, compaction.kept, compaction.attributes)
    if masks:
        attach(masked, {name: cut(mask, compaction.kept.get(name, {})) for name, mask in masks.items()})
    object.__setattr__(masked, "compaction", _both(earlier, compaction) if earlier else compaction)
    return masked


def _both(first: Compaction, second: Compaction) -> Compaction:
    """Two compactions, one after the other, as one of the dense model."""
    shapes = {**second.shapes, **first.shapes}
    kept = {n: kept_in_all(shape, first.kept.get(n, {}), second.kept.get(n, {})) for n, shape in shapes.items()}
    attributes = {path: {**first.attributes.get(path, {}), **second.attributes.get(path, {})}
                  for path in (*first.attributes, *second.attributes)}  # fmt: skip
    parameters = (first.parameters[0], second.parameters[1])
    return replace(second, kept=kept, shapes=shapes, attributes=attributes, parameters=parameters)


def _masked_copy(model: Model, masks: Mapping[str, Tensor] | None) -> tuple[Model, dict[str, Tensor]]:
    """A plain copy with zeros in place, and the masks, those that are attached included."""
    plain = whole_copy(model)
    own = bake(plain)
    if masks is None and not own:
        raise SynflowError("the model has no masks; attach them first, or pass masks=synflow.prune(model, example)")
    masks = {} if masks is None else masks
    check_masks(masks, plain)
    weights = dict(plain.named_parameters())
    for name, mask in masks.items():
        mask = mask.to(weights[name].device)
        own[name] = own[name] & mask if name in own else mask.clone()
    with torch.no_grad():
        for name, mask in own.items():
            weights[name].masked_fill_(~mask, 0)
    return plain, own


def expand(small: nn.Module, dense_model: Model) -> Model:
    """A copy of the dense model with the compact network's weights and statistics, removed weights at zero.

    It has the compact network's outputs, under the dense names and shapes. Attach the dense masks to train on there.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> small = compact(model, torch.ones(1, 3), {"2.weight": torch.tensor([[True, False, False, True]] * 2)})
    >>> x = torch.randn(5, 3)
    >>> torch.allclose(expand(small, model)(x), small(x))
    True
    """
    compaction = compaction_of(small)
    dense, plain = copy.deepcopy(dense_model), copy.deepcopy(small)
    bake(dense)
    bake(plain)
    parts, wholes = tensors(plain), tensors(dense)
    if odd := parts.keys() ^ wholes.keys():
        why = f"{min(odd)} is in only one of them"
        raise SynflowError(f"expand: the dense model is not the one that was compacted, {why}")
    with torch.no_grad():
        for name, whole in wholes.items():
            got, expected = tuple(whole.shape), tuple(compaction.shapes.get(name, parts[name].shape))
            if got != expected:
                raise SynflowError(f"expand: {name} has shape {got} in the dense model, expected {expected}")
            ground = torch.zeros_like(whole) if isinstance(whole, nn.Parameter) else whole
            whole.copy_(paste(parts[name], ground, compaction.kept.get(name, {})))
    dense.train(small.training)
    return dense
