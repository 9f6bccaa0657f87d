"""The facts in the report of a pruned network, measured once and stored as plain numbers."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._version import __version__
from ..benchmarking.results import Benchmark
from ..certificates.certificate import Certificate, certify
from ..certificates.conservation import Conservation, conservation_of
from ..compaction.result import Compaction
from ..flow.paths import reach
from ..masks.checks import full_masks
from ..network.private_copy import open_network
from ..support.json_files import finite
from ..support.torch_modes import with_gradients

# Units drawn in the plot of inflow against outflow: enough to show the law, few enough for a small file.
POINTS = 400


@dataclass(frozen=True)
class LayerFacts:
    """A layer: its weights, its units with a weight on a path, and the share of the flow that passes through it."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    on_path: int
    units: int
    live_units: int
    flow_share: float | None
    flow_share_before: float | None
    compact_units: int | None = None

    @property
    def density(self) -> float:
        """The kept share of the weights."""
        return self.kept / self.total


@dataclass(frozen=True)
class Facts:
    """Everything a report shows; `certificate`, `compaction` and `benchmark` are their plain forms."""

    title: str
    about: dict[str, Any]
    certificate: dict[str, Any]
    layers: tuple[LayerFacts, ...]
    units: tuple[tuple[float, float], ...] = ()
    compaction: dict[str, Any] | None = None
    benchmark: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    command: str | None = None

    @property
    def live_share(self) -> float:
        """Percent of all units that have a weight on a path."""
        return 100 * sum(layer.live_units for layer in self.layers) / max(1, sum(layer.units for layer in self.layers))

    @property
    def dead_layers(self) -> list[str]:
        """The layers without a weight on a path, the empty ones included."""
        return [layer.name for layer in self.layers if not layer.on_path]

    @property
    def speedup(self) -> tuple[float | None, str]:
        """The speed-up of the compact network in the first timed task, and the task."""
        rows = (self.benchmark or {}).get("timings", ())
        row = next((row for row in rows if row["variant"] == "compact"), None)
        return (None, "") if row is None else (row["ratio"], f"{row['task']}, batch {row['batch']}")

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; infinite values become None, because JSON has no infinity."""
        plain = finite(asdict(self))
        assert isinstance(plain, dict)
        return plain


@with_gradients
def gather(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Any,
    *,
    title: str | None = None,
    certificate: Certificate | None = None,
    compaction: Compaction | None = None,
    benchmark: Benchmark | None = None,
    command: str | None = None,
) -> Facts:
    """Measure the facts for the report of a model under masks; neither is changed."""
    certificate = certify(model, masks, example) if certificate is None else certificate
    network = open_network(model, example, select=lambda name, _: name in masks)
    full = full_masks(masks, network.weights)
    on_path = reach(network, full).on_path
    before, after = conservation_of(network, None), conservation_of(network, full)
    about = dict(getattr(masks, "about", {}))
    return Facts(
        title=title or type(model).__name__,
        about=about,
        certificate=finite(certificate.as_dict()),
        layers=tuple(
            _layer(name, mask, mask & on_path[name], before, after, compaction) for name, mask in full.items()
        ),
        units=_points(after),
        compaction=None if compaction is None else plain_compaction(compaction),
        benchmark=None if benchmark is None else plain_benchmark(benchmark),
        versions=versions(),
        command=command,
    )


def plain_compaction(compaction: Compaction) -> dict[str, Any]:
    """The figures of a compaction, without its indices."""
    return {
        "parameters": list(compaction.parameters),
        "difference": compaction.difference,
        "modes": list(compaction.modes),
        "notes": list(compaction.notes),
        "stayed": [asdict(stay) for stay in compaction.stayed],
        "units": {name: list(sizes[0]) for name, sizes in compaction.removed.items()},
    }


def plain_benchmark(benchmark: Benchmark) -> dict[str, Any]:
    """The figures of a benchmark."""
    return asdict(benchmark)


def _threads() -> str:
    count = torch.get_num_threads()
    return "1 thread" if count == 1 else f"{count} threads"


def versions() -> dict[str, str]:
    """The versions of the software that made the figures."""
    return {
        "synflow": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {_threads()}",
    }


def _layer(
    name: str, mask: Tensor, on_path: Tensor, before: Conservation, after: Conservation, compaction: Compaction | None
) -> LayerFacts:
    units = mask.shape[0] if mask.dim() else 1
    live = on_path.reshape(units, -1).any(1) if mask.numel() else on_path
    removed = {} if compaction is None else compaction.removed
    return LayerFacts(
        name=name,
        shape=tuple(mask.shape),
        total=mask.numel(),
        kept=int(mask.sum()),
        on_path=int(on_path.sum()),
        units=units,
        live_units=int(live.sum()),
        flow_share=after.layers.get(name),
        flow_share_before=before.layers.get(name),
        compact_units=None if compaction is None else removed[name][0][1] if name in removed else units,
    )


def _points(conserved: Conservation) -> tuple[tuple[float, float], ...]:
    """Inflow and outflow of an evenly spaced sample of the units with flow."""
    pairs: list[tuple[float, float]] = []
    for inflow, outflow in conserved.units.values():
        both = torch.stack([inflow.double().cpu(), outflow.double().cpu()], 1)
        pairs += [(float(a), float(b)) for a, b in both if a > 0 and b > 0]
    pairs.sort()
    stride = max(1, math.ceil(len(pairs) / POINTS))
    return tuple(pairs[::stride])
