"""Figure 5: iterative magnitude pruning avoids collapse as SynFlow does, and why.

a: more rounds of training and pruning reach higher compressions. b: training pulls the average squared weight of a
layer towards the inverse of its size.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..configs import Config, configured
from ..published import imp_accuracy
from .accuracy import Results, notes_on, points
from .drawing import Drawing
from .fig4 import slope
from .small import training_base
from .style import PALETTE, band, canvas, log_axis, log_log, save

__all__ = ["configs_a", "configs_b", "draw_a", "draw_b"]


def configs_a(scale: str) -> list[Config]:
    """Rounds and compressions, rewound as the lottery-ticket papers do, and not, as the published figure.

    The published figure has one run of each.
    """
    base = configured(training_base(scale), task="imp", method="magnitude")
    rounds: tuple[int, ...]
    if scale == "paper":
        # 50 epochs per round, as published; compressions 10^0, 10^0.1, ... 10^4.9.
        recipe = replace(base.recipe, epochs=50, drops=(), evaluate_every=50)
        base, rounds, exponents = replace(base, recipe=recipe), (1, 2, 3, 4, 5), [step / 10 for step in range(50)]
    elif scale == "laptop":
        rounds, exponents = (1, 3), [1.0, 2.0, 3.0]
    else:
        rounds, exponents = (1, 2), [1.0, 2.0]
    return [
        configured(base, rounds=number, compression=10**exponent, rewind=rewind, seed=seed)
        for seed in ((0, 1, 2) if scale == "laptop" else (0,))
        for rewind in (True, False)
        for number in rounds
        for exponent in exponents
    ]


def draw_a(results: Results, folder: Path, scale: str) -> Drawing:
    """Accuracy against compression, a curve for each number of rounds."""
    table: list[dict[str, Any]] = []
    with canvas(1, 2, width=3.6, height=3.0) as (figure, axes):
        for panel, rewind in zip(axes[0], (True, False), strict=True):
            for colour, number in zip(PALETTE, sorted({r["config"]["rounds"] for r in results}), strict=False):
                found = points(
                    results, lambda c, n=number, w=rewind: (c["rounds"], c["rewind"]) == (n, w)  # type: ignore[misc]
                )  # fmt: skip
                band(panel, found, color=colour, marker="o", label=f"{number} round{'s' * (number > 1)}")
                if scale == "paper" and not rewind:
                    theirs = imp_accuracy(number)
                    panel.plot(*zip(*theirs, strict=True), color=colour, linestyle=":", marker=None, linewidth=1)
                table += [
                    {
                        "rewound": "yes" if rewind else "no", "rounds": number, "compression": f"10^{x:g}",
                        "top-1 accuracy (%)": f"{mean:.1f}" + ("" if low == high else f" ({low:.1f} to {high:.1f})"),
                        "seeds": _seeds(results, number, rewind, x),
                    }
                    for x, mean, low, high in found
                ]  # fmt: skip
            most = max(math.log10(r["config"]["compression"]) for r in results)
            log_axis(panel, 0, math.ceil(most))
            panel.set(xlabel="compression", title="rewound" if rewind else "not rewound (as published)")
        limits = [limit for panel in axes[0] for limit in panel.get_ylim()]
        for panel in axes[0]:
            panel.set_ylim(min(limits), max(limits))
        axes[0][0].set_ylabel("top-1 accuracy (%)")
        axes[0][1].legend(fontsize=8)
        paths = save(figure, folder, "fig5a")
    return Drawing(tuple(paths), table, notes_on(results))


def _seeds(results: Results, rounds: int, rewind: bool, exponent: float) -> int:
    """How many runs stand behind a mean."""
    return sum(
        (r["config"]["rounds"], r["config"]["rewind"]) == (rounds, rewind)
        and math.isclose(math.log10(r["config"]["compression"]), exponent, abs_tol=1e-6)
        for r in results
    )


def configs_b(scale: str) -> list[Config]:
    """Dense training, watched."""
    base = configured(training_base(scale), task="magnitudes", method="dense")
    return [configured(base, seed=seed) for seed in ((0, 1, 2) if scale == "laptop" else (0,))]


def draw_b(results: Results, folder: Path, scale: str) -> Drawing:
    """Each layer's average squared weight through training, and the slope over inverse size, a line for each seed."""
    del scale
    runs = [(result["outcome"]["sizes"], result["outcome"]["mean_square"]) for result in results]
    slopes = [[slope(sizes, means) for means in moments] for sizes, moments in runs]
    with canvas(1, 2, width=3.6, height=3.0) as (figure, axes):
        panel, lines = axes[0]
        for sizes, moments in runs:
            for place, colour in ((0, PALETTE[6]), (len(moments) - 1, PALETTE[0])):
                x, y = [1 / sizes[name] for name in sizes], [moments[place][name] for name in sizes]
                label = f"epoch {place}" if moments is runs[0][1] else None
                panel.scatter(x, y, s=18, color=colour, label=label)
        log_log(panel)
        panel.set(xlabel="1 / weights of the layer", ylabel="average squared weight")
        panel.legend(fontsize=8)
        for line in slopes:
            lines.plot(range(len(line)), line, color=PALETTE[0], marker="o")
        lines.axhline(1, color="black", linestyle=":", linewidth=1)
        lines.set(xlabel="epoch", ylabel="slope (1: the inverse law)")
        paths = save(figure, folder, "fig5b")
    table = [
        {"epoch": place, "slope": ", ".join(f"{value:.3f}" for value in values)}
        for place, values in enumerate(zip(*slopes, strict=True))
    ]
    return Drawing(tuple(paths), table, ("one slope for each seed",) if len(runs) > 1 else ())
