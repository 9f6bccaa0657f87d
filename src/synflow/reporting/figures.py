"""The plots of a report: each function takes facts and returns a figure with its caption, or nothing without data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .facts import Facts, LayerFacts
from .svg import Scale, bars, line, plot, points, rule


def figure(image: str, caption: str) -> str:
    """An image with a caption of one sentence."""
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def figures_of(facts: Facts) -> list[str]:
    """All plots of one pruned network for which there are data."""
    made = [_density(facts.layers), _live(facts.layers), _flow(facts), _fractions(facts), _units(facts), _sizes(facts)]
    return [text for text in made if text]


def compare_density(runs: Mapping[str, Facts]) -> str:
    """Density per layer, one line per network."""
    every = [layer.density for facts in runs.values() for layer in facts.layers if layer.kept]
    low = 10 ** math.floor(math.log10(min(every, default=0.1)))
    shapes = [
        line([(i, max(layer.density, low / 3)) for i, layer in enumerate(facts.layers, 1)], mark, marked=True)
        for mark, facts in enumerate(runs.values())
    ]
    count = max(len(facts.layers) for facts in runs.values())
    image = plot(
        "Density of each layer, by method", _places(count), Scale(low / 3, 1.3, True, "density"), *shapes,
        legend=[(name, mark) for mark, name in enumerate(runs)],
    )  # fmt: skip
    return figure(image, "Share of weights kept in each layer; a mark on the floor is a layer that is empty.")


def compare_live(runs: Mapping[str, Facts]) -> str:
    """Live units per layer, one line per network."""
    shapes = [
        line([(i, 100 * layer.live_units / layer.units) for i, layer in enumerate(facts.layers, 1)], mark, marked=True)
        for mark, facts in enumerate(runs.values())
    ]
    count = max(len(facts.layers) for facts in runs.values())
    image = plot(
        "Live units of each layer, by method", _places(count), Scale(0, 105, label="live units, %"), *shapes,
        legend=[(name, mark) for mark, name in enumerate(runs)],
    )  # fmt: skip
    return figure(image, "Units with a weight on a path from input to output; the others can be removed.")


def curve_image(
    title: str, curves: Mapping[str, Sequence[tuple[float, float]]], levels: Mapping[str, float] | None = None
) -> str:
    """Accuracy over compression (a logarithmic axis), one curve per method, with dashed reference levels."""
    values = [point for curve in curves.values() for point in curve]
    top = max([b for _, b in values] + list((levels or {}).values()))
    high = max(a for a, _ in values)
    shapes = [line(curve, mark, marked=True) for mark, curve in enumerate(curves.values())]
    shapes += [rule(value, text) for text, value in (levels or {}).items()]
    return plot(
        title,
        Scale(min(a for a, _ in values) * 0.85, high * 1.2, True, "compression"),
        Scale(0, top * 1.06, label="test accuracy, %"),
        *shapes,
        legend=[(name, mark) for mark, name in enumerate(curves)],
    )


def _places(count: int) -> Scale:
    return Scale(0.3, count + 0.7, label="layer, from input to output", integer=True)


def _density(layers: Sequence[LayerFacts]) -> str:
    kept = [layer.density for layer in layers if layer.kept]
    if not kept:
        return ""
    low = 10 ** math.floor(math.log10(min(kept)) - 0.05)
    tips = [f"{layer.name}: {layer.kept:,} of {layer.total:,}" for layer in layers]
    image = plot(
        "Density of each layer", _places(len(layers)), Scale(low, 1, True, "density"),
        bars([layer.density for layer in layers], low, 0, tips),
    )  # fmt: skip
    return figure(
        image, "Share of weights kept in each layer. Small layers keep more: their weights carry more flow each."
    )


def _live(layers: Sequence[LayerFacts]) -> str:
    top = max(layer.units for layer in layers)
    tips = [f"{layer.name}: {layer.live_units} of {layer.units} live" for layer in layers]
    shapes = [
        bars([layer.units for layer in layers], 0, 5, tips, 0.9),
        bars([layer.live_units for layer in layers], 0, 0, tips, 0.6),
    ]
    legend = [("dense", 5), ("live", 0)]
    compact = [layer.compact_units for layer in layers]
    if all(units is not None for units in compact):
        places = [(i, float(units or 0)) for i, units in enumerate(compact, 1)]
        shapes.append(points(places, 3, [f"{layer.name}: {layer.compact_units} after compaction" for layer in layers]))
        legend.append(("after compaction", 3))
    image = plot(
        "Live units before and after pruning", _places(len(layers)), Scale(0, top * 1.05, label="units"), *shapes,
        legend=legend,
    )  # fmt: skip
    return figure(image, "Units (channels, neurons) of each layer, and those that still have a weight on a path.")


def _steps(facts: Facts) -> list[Mapping[str, Any]]:
    steps = facts.certificate.get("steps") or []
    return [step for step in steps if step.get("flow_log2") is not None]


def _flow(facts: Facts) -> str:
    steps = _steps(facts)
    if len(steps) < 2:
        return ""
    flow = [(float(step["index"]), float(step["flow_log2"])) for step in steps]
    before, after = facts.certificate.get("flow_log2_before"), facts.certificate.get("flow_log2")
    # If biases add to the flow, the bound applies to another number than the recorded one.
    pure = before is not None and abs(flow[0][1] - before) < 1e-3
    promised = [
        (a + 1, b + math.log2(1 - step["pruned_fraction"]))
        for (a, b), step in zip(flow, steps, strict=True)
        if pure and step["substeps"] == 1 and 0 <= (step["pruned_fraction"] or 0) < 1
    ]
    if pure and after is not None:
        flow.append((flow[-1][0] + 1, float(after)))
    values = [b for _, b in flow + promised]
    span = max(max(values) - min(values), 1)
    shapes, legend = [line(flow, 0)], [("measured", 0)]
    if promised:
        shapes.append(points(promised[:: max(1, len(promised) // 20)], 1, size=2.6))
        legend.append(("promised by Theorem 3", 1))
    image = plot(
        "Flow at each step, with the bound of Theorem 3",
        Scale(0, flow[-1][0], label="step", integer=True),
        Scale(min(values) - 0.06 * span, max(values) + 0.06 * span, label="log2 of the flow"),
        *shapes, legend=legend,
    )  # fmt: skip
    said = " Before each step the theorem promises a flow; the measured one is never below it." if promised else ""
    return figure(image, f"The flow from inputs to outputs as weights go.{said}")


def _fractions(facts: Facts) -> str:
    steps = [step for step in _steps(facts) if step.get("pruned_fraction") is not None]
    values = [(float(step["index"]), float(step["pruned_fraction"])) for step in steps]
    values = [(a, b) for a, b in values if math.isfinite(b)]
    if len(values) < 2:
        return ""
    image = plot(
        "Flow pruned at each step, as a share of the flow",
        Scale(0, values[-1][0], label="step", integer=True),
        Scale(0, max(1.1, 1.05 * max(b for _, b in values)), label="pruned flow / flow"),
        line(values, 0, marked=len(values) <= 120), rule(1.0, "Theorem 3: a path survives below"),
    )  # fmt: skip
    return figure(image, "What each step takes away of the flow. Below one, some path provably survives the step.")


def _units(facts: Facts) -> str:
    if len(facts.units) < 3:
        return ""
    every = [value for pair in facts.units for value in pair]
    low, high = min(every) * 0.7, max(every) * 1.4
    image = plot(
        "Inflow against outflow of units", Scale(low, high, True, "inflow, share of the flow"),
        Scale(low, high, True, "outflow"), line([(low, low), (high, high)], 5, dashed=True),
        points(facts.units, 0, size=2.4),
    )  # fmt: skip
    return figure(image, f"Theorem 1: what enters a unit leaves it. {len(facts.units)} units of the pruned network.")


def _sizes(facts: Facts) -> str:
    rows = [layer for layer in facts.layers if layer.flow_share_before]
    if len(rows) < 2:
        return ""
    dense = [(1 / layer.total, (layer.flow_share_before or 0) / layer.total) for layer in rows]
    kept = [(1 / layer.kept, layer.flow_share / layer.kept) for layer in rows if layer.kept and layer.flow_share]
    xs, ys = ([pair[i] for pair in dense + kept] for i in (0, 1))
    low, high = min(xs) * 0.6, max(xs) * 1.6
    tips = [layer.name for layer in rows]
    image = plot(
        "Mean score of a layer against one over its size", Scale(low, high, True, "1 / weights in the layer"),
        Scale(min(ys) * 0.6, max(ys) * 1.6, True, "mean score / flow"),
        line([(low, low), (high, high)], 5, dashed=True), points(dense, 0, tips), points(kept, 1, tips),
        legend=[("before pruning", 0), ("after", 1)],
    )  # fmt: skip
    return figure(
        image,
        "Theorem 2: a layer that every path crosses carries the whole flow, so its mean score is one over its size.",
    )
