"""How much flow each step of a schedule prunes, as a share of the flow there is (figure 10)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import synflow

from ..methods import example_of, make_model
from ..runs import Run

__all__ = ["ratios"]


def ratios(run: Run) -> dict[str, Any]:
    """The largest prune size over cut size of any step: below one, Theorem 3 promises that no layer collapses.

    The paper's algorithm to the letter: no guard, a fixed number of steps.
    """
    config = run.config
    model, example = make_model(config), example_of(config)
    masks = synflow.prune(
        model, example, compression=config.compression, score="synflow", steps=config.steps or 100,
        schedule=config.schedule, guard=False,
    )  # fmt: skip
    shares = [math.nan if step.pruned_fraction is None else step.pruned_fraction for step in masks.steps]
    # Where no flow is left there is nothing to take a share of.
    found = list(itertools.takewhile(lambda share: not math.isnan(share), shares))
    alive = len(found) == len(shares) and all(bool(mask.any()) for mask in masks.values())
    return {"largest": max(found), "ratios": found, "alive": alive}
