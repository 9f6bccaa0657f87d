"""Conservation of flow: inflow equals outflow at each unit, each cut carries the whole flow (Theorems 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..flow.measure import Measurement, measure
from ..flow.passes import PassOptions
from ..masks.checks import check_any, check_mapping, full_masks
from ..network.private_copy import Network, open_network
from ..support.torch_modes import with_gradients


@dataclass(frozen=True)
class Conservation:
    """How well the flow is conserved, at each unit and at each cut.

    `units` maps a layer to the inflow of each of its units, through the weights of the layer, and to their outflow,
    both as shares of the whole flow. `layers` maps each layer to the sum of its scores over the flow; this is one for
    a layer that each term meets exactly once (`cuts`).
    """

    units: dict[str, tuple[Tensor, Tensor]]
    layers: dict[str, float]
    cuts: tuple[str, ...]

    @property
    def unit_residual(self) -> float | None:
        """The largest difference between inflow and outflow of a unit, as a share of the flow.

        As a share of the layer's flow if that is larger: before gates in series a term meets a layer 2, 4, ... times.
        """
        differences = [
            float((inflow - outflow).abs().max()) / max(1.0, float(inflow.sum()))
            for inflow, outflow in self.units.values()
        ]
        return max(differences, default=None)

    @property
    def layer_residual(self) -> float | None:
        """The largest difference from one of the sum of scores over the flow, among the layers that are cuts."""
        return max((abs(self.layers[name] - 1.0) for name in self.cuts), default=None)


@with_gradients
def conservation(model: nn.Module, example: Any, masks: Mapping[str, Tensor] | None = None) -> Conservation:
    """Compare inflow with outflow at every unit of every layer, and each cut's scores with the flow.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> conserved = conservation(net, torch.ones(1, 4))
    >>> conserved.cuts, conserved.unit_residual < 1e-6
    (('0.weight', '2.weight'), True)
    """
    if masks is None:
        return conservation_of(open_network(model, example), None)
    check_mapping(masks)
    check_any(masks, "look at")
    network = open_network(model, example, select=lambda name, _: name in masks)
    return conservation_of(network, full_masks(masks, network.weights))


def conservation_of(network: Network, masks: Mapping[str, Tensor] | None) -> Conservation:
    """`conservation` of an opened network."""
    traced = measure(network, masks, options=PassOptions(shifts=False, trace=True))
    if traced.value <= 0:
        return Conservation({}, {}, ())
    layers = {name: float(score.double().sum()) / traced.value for name, score in traced.scores.items()}
    units = {}
    for name, outflow in traced.unit_flows.items():
        inflow = _inflow(network, name, traced)
        if inflow is not None and inflow.shape == outflow.shape:
            units[name] = (inflow / traced.value, outflow / traced.value)
    low, high = traced.degrees or ((), ())
    met = zip(traced.scores, low, high, strict=False)
    return Conservation(units, layers, tuple(name for name, least, most in met if least == most == 1))


def _inflow(network: Network, name: str, traced: Measurement) -> Tensor | None:
    """The scores of a layer summed for each of its output units."""
    scores = traced.scores[name].double()
    module = network.model.get_submodule(name.rpartition(".")[0])
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        split = scores.reshape(module.groups, scores.shape[0] // module.groups, scores.shape[1], -1)
        return split.sum((1, 3)).flatten()
    return scores.flatten(1).sum(1) if scores.dim() > 1 else None
