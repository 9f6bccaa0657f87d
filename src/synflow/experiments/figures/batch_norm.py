"""Appendix B: flow is conserved through batch norm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..configs import Config
from .accuracy import Results
from .drawing import Drawing
from .style import PALETTE, canvas, log_log, save

__all__ = ["configs", "draw"]


def configs(scale: str) -> list[Config]:
    """One network with batch norm."""
    if scale == "smoke":
        return [Config(task="batch_norm", model="vgg11_bn", width=0.0625, dataset="digits32")]
    if scale == "laptop":
        return [Config(task="batch_norm", model="vgg16_bn", width=0.25, dataset="cifar100")]
    return [Config(task="batch_norm", model="vgg16_bn", dataset="cifar100")]


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Inflow against outflow of each unit, for fresh batch norms and for ones that have lived."""
    del scale
    outcome = results[0]["outcome"]
    titles = {"fresh": "at initialisation", "trained": "gains, shifts, statistics random"}
    table: list[dict[str, Any]] = []
    with canvas(1, 2, width=3.2, height=3.0) as (figure, axes):
        for panel, colour, (state, title) in zip(axes[0], PALETTE, titles.items(), strict=False):
            pairs = zip(outcome[state]["inflow"], outcome[state]["outflow"], strict=True)
            inflow, outflow = zip(*[(a, b) for a, b in pairs if a > 0 and b > 0], strict=True)
            ends = [min(inflow), max(inflow)]
            panel.scatter(inflow, outflow, s=4, color=colour, alpha=0.5, linewidths=0, rasterized=True)
            panel.plot(ends, ends, color="black", linestyle=":", linewidth=1)
            log_log(panel)
            panel.set(title=title, xlabel="inflow (share of the flow)")
            sums = outcome[state]["layers_with_shifts"].values()
            table.append(
                {
                    "batch norm": title, "units": len(inflow),
                    "largest unit difference": f"{outcome[state]['unit_residual']:.1e}",
                    "largest layer difference": f"{outcome[state]['layer_residual']:.1e}",
                    "least layer sum, shifts counted": f"{min(sums):.4f}",
                }
            )  # fmt: skip
        axes[0][0].set_ylabel("outflow (share of the flow)")
        paths = save(figure, folder, "batch_norm")
    note = "differences are those of the flow that starts at inputs; shifts start flow of their own (last column)"
    return Drawing(tuple(paths), table, (note,))
