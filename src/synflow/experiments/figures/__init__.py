"""The paper's figures and ours: for each, the runs it needs and how it is drawn from their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..configs import Config
from . import (
    ablations,
    batch_norm,
    cost,
    fig1,
    fig2,
    fig3,
    fig4,
    fig5,
    fig6,
    fig10,
    iterative_snip,
    margins,
    past,
    sceptic,
    timing,
    tournament,
)
from .accuracy import Results
from .drawing import Drawing

__all__ = ["EXPERIMENTS", "SCALES", "Drawing", "Experiment"]

SCALES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Experiment:
    """An experiment: what it shows, its runs at a scale, and its figure, drawn from results alone."""

    title: str
    configs: Callable[[str], list[Config]]
    draw: Callable[[Results, Path, str], Drawing]
    trains: bool = True


EXPERIMENTS: dict[str, Experiment] = {
    "fig1": Experiment(
        "accuracy against compression, with each method's critical compression", fig1.configs, fig1.draw
    ),
    "fig2": Experiment("weights kept per layer, VGG-19 at initialisation", fig2.configs, fig2.draw, trains=False),
    "fig3": Experiment("score into and out of each unit", fig3.configs, fig3.draw, trains=False),
    "fig4": Experiment("average score of a layer against its inverse size", fig4.configs, fig4.draw, trains=False),
    "fig5a": Experiment("iterative magnitude pruning, 1 to n rounds", fig5.configs_a, fig5.draw_a),
    "fig5b": Experiment("weights through training", fig5.configs_b, fig5.draw_b),
    "fig6": Experiment("accuracy against compression of five methods, pair by pair", fig6.configs, fig6.draw),
    "fig10": Experiment("linear and exponential schedules", fig10.configs, fig10.draw, trains=False),
    "iterative_snip": Experiment("SNIP in one and in many steps", iterative_snip.configs, iterative_snip.draw),
    "batch_norm": Experiment("conservation through batch norm", batch_norm.configs, batch_norm.draw, trains=False),
    "ablations": Experiment("new weights, shuffled masks, inverted scores", ablations.configs, ablations.draw),
    "cost": Experiment("passes and seconds of each method", cost.configs, cost.draw, trains=False),
    "margins": Experiment("certified margins against the paper's schedule", margins.configs, margins.draw),
    "timing": Experiment("compact against masked training time", timing.configs, timing.draw),
    "sceptic": Experiment(
        "SynFlow, random and magnitude against narrower dense networks", sceptic.configs, sceptic.draw
    ),
    "past": Experiment("SynFlow past the published compressions", past.configs, past.draw),
    "tournament": Experiment("eight methods on up to four networks", tournament.configs, tournament.draw),
}
