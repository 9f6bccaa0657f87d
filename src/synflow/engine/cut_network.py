"""The network that is cut down while it is pruned: which part of the whole one it is, and how to map back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..compaction.cut.surgery import cut as part_of
from ..compaction.cut.while_pruning import Outline, cut_down, outline
from ..network.private_copy import Network, open_network, private_copy
from .index_map import IndexMap, outside
from .thresholds import Thresholds


class CutNetwork:
    """A network of the units that are alive. At first it is the whole network.

    `index_maps` is where the weights of each cut tensor lie in the whole one. `outside` are kept weights that lie
    outside of the cut network, by flat position in the whole tensor: no flow passes them. `held` is the number of
    weights at the last cut; `possible` is False once a cut has failed.
    """

    def __init__(self, network: Network, held: float) -> None:
        self.whole = self.network = network
        self.index_maps: dict[str, IndexMap] = {}
        self.outside: dict[str, Tensor] = {}
        self.held = held
        self.possible = True
        self._model: nn.Module = network.model
        self._outline: Outline | None = None
        self._kept: Mapping[str, Mapping[int, Any]] = {}

    @property
    def idle(self) -> int:
        """How many kept weights lie outside."""
        return sum(len(positions) for positions in self.outside.values())

    def share_to_leave(
        self, masks: Callable[[], Mapping[str, Tensor]], count: int, ahead: float, limits: Thresholds
    ) -> float | None:
        """The share of this network that a cut may leave; None where too few units are dead, or too few steps ahead."""
        few = self.network.size < limits.cut_from_weights or count > limits.cut_when_left * self.held
        if few or not self.possible or ahead < limits.cut_cost:
            return None
        alive = sum(map(_alive, masks().values())) / max(self.network.size, 1)
        enough = min(limits.cut_gain, limits.cut_worth * self.whole.size / self.network.size)
        if alive > enough or ahead * (1 - alive) < limits.cut_cost:
            self.look_again_soon(count, limits)
            return None
        self.held = count
        return enough

    def look_again_soon(self, count: int, limits: Thresholds) -> None:
        """Let the next cut be thought of when fewer weights have gone: units die late."""
        self.held = count * limits.cut_gain / limits.cut_when_left

    def smaller(
        self, magnitudes: Mapping[str, Tensor], masks: dict[str, Tensor], enough: float, check: bool
    ) -> CutNetwork | None:
        """The part of this network that masks leave; None where more than `enough` of its weights would stay."""
        if self._outline is None:
            self._outline = outline(*_in_one_precision(self._model, self.whole.example))
        cut = cut_down(self._outline, masks, enough, check)
        kept = {name: cut.kept[name] for name in masks if name in cut.kept}
        if not kept:
            return None
        chosen = set(magnitudes)
        small = CutNetwork(self.whole, self.held)
        small._model, small._kept = cut.apply(self._model, magnitudes), kept
        small.network = open_network(
            small._model, self.whole.example, select=lambda name, _: name in chosen,
            seed=self.whole.seed, score_name=self.whole.score_name, own=True,
        )  # fmt: skip
        small.index_maps, small.outside = dict(self.index_maps), dict(self.outside)
        for name, indices in kept.items():
            mapped = self.index_maps.get(name) or IndexMap.of(magnitudes[name])
            positions = mapped.at(outside(masks[name], indices))
            small.index_maps[name] = mapped.cut(indices)
            if len(positions):
                before = small.outside.get(name)
                small.outside[name] = positions if before is None else torch.cat([before, positions])
        return small

    def cut_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the network that this one was cut from, cut likewise; each is taken out, so that it may be freed.

        A tensor that is not cut is handed on as it is.
        """
        return {name: part_of(tensors.pop(name), self._kept.get(name, {})) for name in list(tensors)}

    def parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parts of whole tensors that lie in this network."""
        return {
            name: tensor.reshape(-1)[self.index_maps[name].flat().long()] if name in self.index_maps else tensor
            for name, tensor in tensors.items()
        }

    def widened(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of this network in the shapes of the whole one, zero elsewhere."""
        full = {}
        for name, tensor in tensors.items():
            full[name] = tensor
            if name in self.index_maps:
                shape = self.whole.weights[name].shape
                full[name] = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
                full[name].view(-1).index_copy_(0, self.index_maps[name].flat().view(-1).long(), tensor.reshape(-1))
        return full

    def keep_only(self, masks: Mapping[str, Tensor]) -> None:
        """Forget what lies outside and is no longer kept."""
        kept = {name: positions[masks[name].reshape(-1)[positions]] for name, positions in self.outside.items()}
        self.outside = {name: positions for name, positions in kept.items() if len(positions)}


def _in_one_precision(model: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """A model and an example as they run together: flow takes weights, biases and inputs of any precision, torch not.

    The precision is that of most weights, so that few tensors are copied.
    """
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        sizes[parameter.dtype] += parameter.numel() if parameter.is_floating_point() else 0
    dtype = max(sizes, key=lambda kind: sizes[kind])

    def cast(leaf: Any) -> Any:
        other = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != dtype
        return leaf.detach().to(dtype) if other else leaf

    if all(cast(leaf) is leaf for leaf in (*model.parameters(), *model.buffers(), *pytree.tree_leaves(example))):
        return model, example
    same = private_copy(model)
    for module in same.modules():
        for name, own in module._parameters.items():
            if own is not None and cast(own) is not own:
                module._parameters[name] = nn.Parameter(cast(own), requires_grad=False)
        module._buffers.update({name: cast(buffer) for name, buffer in module._buffers.items()})
    return same, pytree.tree_map(cast, example)


def _alive(mask: Tensor) -> int:
    """The size of a tensor without its empty rows and columns."""
    if mask.dim() < 2 or not mask.numel():
        return mask.numel()
    rows = mask.flatten(1)
    across: Any
    if mask.device.type == "cpu":  # NumPy is several times as fast
        array = rows.numpy()
        number, across = int(np.count_nonzero(array.any(axis=1))), torch.from_numpy(array.any(axis=0))
    else:
        number, across = int(rows.any(1).sum()), rows.any(0)
    return number * mask.shape[2:].numel() * int(across.view(mask.shape[1], -1).any(1).sum())
