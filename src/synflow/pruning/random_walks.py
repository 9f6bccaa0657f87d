"""PHEW on any network: how soon biased random walks from the inputs and from the outputs pass each weight.

A walk leaves a unit by one of its weights, with probability |w| / (sum of |w| over them). On a chain the expected
number of walks through a weight is its flow when the weights that leave each unit sum to one (walks from the inputs),
or those that enter it (walks from the outputs). So the rates are two measurements of the flow on normalised weights,
whatever the architecture. Each layer's rates are scaled to sum to one: a walk passes each layer once, also beside a
skip connection; where branches part, it follows each.

Walks that arrive at random pass a weight of rate p for the first time after Exp(1) / p of them. A weight counts from
the moment when the weights passed so far join it to an input and to an output: a whole walk has then passed it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..flow.measure import absolute, measure
from ..flow.passes import PassOptions
from ..flow.paths import reach
from ..network.private_copy import Network

# How many times the joined weights are looked for, at numbers of weights in geometric progression from one per layer
# to all: between two checks (12% to 40% more weights) some weights count a little before their path is complete.
CHECKS = 40
# A walk goes from unit to unit by weights alone.
_WALKS = PassOptions(shifts=False, divide=False)
_INPUTS_FIRST = ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Conv1D")


def first_visits(network: Network, masks: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """After how many walks each weight lies on a walked path from an input to an output; infinity if never."""
    generator = torch.Generator().manual_seed(network.seed)
    times = {}
    for name, rate in visit_rates(network, masks).items():
        waits = torch.empty(rate.shape, dtype=torch.float64).exponential_(generator=generator)
        times[name] = waits.to(rate.device) / rate
    return _joined(network, times)


def visit_rates(network: Network, masks: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """The share of all walks through a layer that take each weight; half of the walks start at the outputs."""
    magnitudes = absolute(network, masks)
    rates = {name: torch.zeros_like(size, dtype=torch.float64) for name, size in magnitudes.items()}
    for leaving in (True, False):
        chances = {name: _chances(network, name, size, leaving) for name, size in magnitudes.items()}
        for name, score in measure(network, magnitudes=chances, options=_WALKS).scores.items():
            score = score.to(torch.float64)
            rates[name] += score / score.sum().clamp_min(torch.finfo(torch.float64).tiny) / 2
    return rates


def _chances(network: Network, name: str, magnitude: Tensor, leaving: bool) -> Tensor:
    """Magnitudes that sum to one over the weights that leave each input unit, or enter each output unit."""
    if magnitude.dim() < 2:
        return magnitude
    module = network.model.get_submodule(name.rpartition(".")[0])
    groups = getattr(module, "groups", 1)
    # As (groups, outputs, inputs, kernel); inputs come first in transposed layers, and in a Conv1D of transformers.
    outputs, inputs = (2, 1) if type(module).__name__ in _INPUTS_FIRST else (1, 2)
    shape = (groups, magnitude.shape[0] // groups, magnitude.shape[1], -1)
    whole = magnitude.reshape(shape)
    sums = whole.sum((outputs if leaving else inputs, 3), keepdim=True)
    return (whole / sums.clamp_min(torch.finfo(sums.dtype).tiny)).reshape(magnitude.shape)


def _joined(network: Network, times: dict[str, Tensor]) -> dict[str, Tensor]:
    """When each weight is joined to an input and to an output by weights passed before, as of the next check."""
    ordered = torch.cat([time[torch.isfinite(time)] for time in times.values()]).sort().values
    total, few = len(ordered), min(len(times), len(ordered))
    counts = sorted({round(few * (total / few) ** (level / CHECKS)) for level in range(CHECKS + 1)}) if few else []
    joined = {name: torch.full_like(time, torch.inf) for name, time in times.items()}
    before = 0.0
    for count in counts:
        now = float(ordered[count - 1])
        some = {name: time <= now for name, time in times.items()}
        for name, on_path in reach(network, some).on_path.items():
            # A weight that waited for others was joined between the last check and this one.
            found = torch.where(times[name] > before, times[name], now)
            joined[name] = torch.where(some[name] & on_path & torch.isinf(joined[name]), found, joined[name])
        before = now
    return joined
