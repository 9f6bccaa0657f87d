"""The results of `synflow demo`: tables on the screen, and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..reporting.comparison import comparison_page
from ..reporting.facts import gather, versions
from ..reporting.figures import curve_image, figure
from ..reporting.markup import Cell, plots, section, table_of
from .demo_run import Found
from .demo_training import METHODS, Outcome, Variant
from .output import command_line, say, table

CAPTION = (
    "Test accuracy after training at each compression (10% is guessing). One seed and 360 test images: a difference of "
    "two points is noise. A network without a path from inputs to outputs can only guess; some guess although a path "
    "is left. SynFlow keeps a path at every compression."
)


def report_page(found: Found, seconds: float) -> str:
    """The report: accuracy of all methods, then the networks of the middle compression side by side."""
    setting, middle = found.setting, found.middle
    chosen = [outcome for outcome in found.outcomes if outcome.compression == middle]
    facts = {
        outcome.method: gather(
            setting.model, outcome.masks, setting.example, title="the demo's network", command=command_line()
        )
        for outcome in chosen
    }
    curves = {method: [(o.compression, o.accuracy) for o in found.outcomes if o.method == method] for method in METHODS}
    picture = figure(
        curve_image("Accuracy against compression", curves, {"dense": found.variants[0].accuracy}), CAPTION
    )
    extra = [
        section("When does a network collapse?", plots([picture])),
        section("Accuracy", _accuracy_html(curves)),
        section(f"Dense, masked, compact (SynFlow, {middle:g}x)", _variants_html(found.variants)),
    ]
    return comparison_page(
        facts, {outcome.method: outcome.masks for outcome in chosen}, title="synflow demo",
        sub=f"Five methods on 1,797 handwritten digits, in {seconds:.0f} s", extra=extra,
    )  # fmt: skip


def figures(found: Found, seconds: float) -> dict[str, Any]:
    """The contents of results.json."""
    return {
        "seconds": seconds,
        "outcomes": [
            {"method": o.method, "compression": o.compression, "accuracy": o.accuracy, "connected": o.connected}
            for o in found.outcomes
        ],
        "variants": [vars(variant) for variant in found.variants],
        "versions": versions(),
    }


def _accuracy_html(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    heads = ["method", *(f"{compression:g}x" for compression, _ in next(iter(curves.values())))]
    rows: list[list[Cell]] = [
        [(method, method), *((f"{accuracy:.1f}%", accuracy) for _, accuracy in curve)]
        for method, curve in curves.items()
    ]
    return table_of("Accuracy of each method", heads, rows)


def _variants_html(variants: Sequence[Variant]) -> str:
    rows: list[list[Cell]] = [
        [
            (v.name, v.name), (f"{v.accuracy:.1f}%", v.accuracy), (f"{v.weights:,}", v.weights),
            (f"{v.parameters:,}", v.parameters), (f"{v.steps_per_second:.1f}", v.steps_per_second),
        ]
        for v in variants
    ]  # fmt: skip
    return table_of("Variants", ["network", "accuracy", "weights", "parameters in memory", "steps per second"], rows)


def tell(found: Found, seconds: float, report: Path) -> None:
    """Print the tables at the end of the demonstration."""
    say("test accuracy by compression (x: collapsed, no path is left)\n")
    by = {(o.method, o.compression): o for o in found.outcomes}
    wanted = sorted({compression for _, compression in by})
    table(
        ["method", *((f"{value:g}x", "right") for value in wanted)],
        [[method, *(_entry(by[method, value]) for value in wanted)] for method in METHODS],
    )
    say(f"\nthe same training dense, masked and compact (SynFlow at {found.middle:g}x)\n")
    dense = found.variants[0].steps_per_second
    table(
        ["network", *((head, "right") for head in ("accuracy", "weights", "parameters", "steps/s", "faster"))],
        [
            [v.name, f"{v.accuracy:.1f}%", f"{v.weights:,}", f"{v.parameters:,}", f"{v.steps_per_second:.1f}",
             f"{v.steps_per_second / dense:.1f}x"]
            for v in found.variants
        ],
    )  # fmt: skip
    say(f"\n{seconds:.0f} s in all; open {report}")


def _entry(outcome: Outcome) -> str:
    return f"{outcome.accuracy:.1f}%" if outcome.connected else "x"
