"""The report of several pruned networks of one model, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torch import Tensor

from .facts import Facts
from .figures import compare_density, compare_live
from .markup import Cell, document, number, plots, ratio, section, settings, table_of, text
from .overlap import overlaps


def comparison_page(
    runs: Mapping[str, Facts],
    masks: Mapping[str, Mapping[str, Tensor]],
    *,
    title: str = "Comparison",
    sub: str | None = None,
    extra: Sequence[str] = (),
) -> str:
    """Several pruned networks of one model side by side, with the overlap of their masks; `extra` comes first."""
    timed = any(facts.benchmark is not None for facts in runs.values())
    rows = [
        [
            (name, name), text(str(facts.about.get("method", "-"))), number(facts.certificate["compression"], "x"),
            number(facts.certificate["kept"]), _yes(facts.certificate["connected"]),
            number(len(facts.certificate["empty_layers"])), number(len(facts.dead_layers)),
            _effective(facts.certificate),
            number(facts.live_share, "%"), *([ratio(facts.speedup[0])] if timed else []),
        ]
        for name, facts in runs.items()
    ]  # fmt: skip
    heads = ["network", "method", "compression", "kept", "connected", "empty layers", "dead layers", "effective",
             "live units"]  # fmt: skip
    made = [
        *extra,
        section("Networks", table_of("Pruned networks", heads + ["faster"] * timed, rows, wide=(3, 7))),
        section("Layer by layer", plots([compare_density(runs), compare_live(runs)])),
        section("Density of each layer", _densities(runs)),
    ]
    if len(masks) > 1:
        made.append(section("Overlap of the masks", _overlaps(masks)))
    first = next(iter(runs.values()))
    made.append(section("How it was made", settings(first.versions, short=True) + _commands(runs)))
    return document(title, sub or f"{len(runs)} pruned networks of {first.title}", made)


def _overlaps(masks: Mapping[str, Mapping[str, Tensor]]) -> str:
    """For each pair of networks: of the weights that either keeps, the share that both keep."""
    rows = [
        [text(a), *(number(100 * overlaps(masks[a], masks[b], a, b)[-1].overlap, "%") for b in masks)] for a in masks
    ]
    said = "<p>Of the weights that either of two networks keeps, the share that both keep.</p>"
    return said + table_of("Overlap of the masks", ["network", *masks], rows)


def _densities(runs: Mapping[str, Facts]) -> str:
    names = [layer.name for layer in next(iter(runs.values())).layers]
    by = {run: {layer.name: layer for layer in facts.layers} for run, facts in runs.items()}
    rows = [
        [
            (name.removesuffix(".weight"), index),
            *(number(100 * by[run][name].density, "%") if name in by[run] else ("-", -1) for run in runs),
        ]
        for index, name in enumerate(names)
    ]
    return table_of("Density of each layer", ["layer", *runs], rows)


def _commands(runs: Mapping[str, Facts]) -> str:
    commands = list(dict.fromkeys(facts.command for facts in runs.values() if facts.command))
    return f"<pre>{escape(chr(10).join(commands))}</pre>" if commands else ""


def _effective(certificate: Mapping[str, Any]) -> Cell:
    return number(certificate["effective_compression"], "x") if certificate["connected"] else ("no path", -1)


def _yes(value: bool) -> Cell:
    return ("yes", 1) if value else ("NO", 0)
