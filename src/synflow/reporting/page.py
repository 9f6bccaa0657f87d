"""The report of one pruned network: one HTML file, light and dark, for screens, phones and paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..support.numbers import power_of_two, setting_text, times
from .facts import Facts
from .figures import figures_of
from .markup import document, number, plots, ratio, seconds, section, settings, table_of, text


def page(facts: Facts) -> str:
    """The report of one pruned network."""
    about, certificate = facts.about, facts.certificate
    method = str(about.get("method", "masks"))
    sub = f"{method}, {times(certificate['compression'])}: {certificate['kept']:,} of {certificate['total']:,} weights"
    parts = [
        _cards(facts),
        section("Certificate", _certificate(certificate, facts.dead_layers)),
        section("Pictures", plots(figures_of(facts))),
        section("Layers", _layers(facts)),
    ]
    if facts.benchmark is not None:
        parts.append(section("Measured speed", _speed(facts.benchmark)))
    if facts.compaction is not None:
        parts.append(section("Compaction", _compaction(facts.compaction)))
    parts.append(section("How it was made", _made(facts)))
    return document(facts.title, sub, parts)


def _cards(facts: Facts) -> str:
    certificate = facts.certificate
    connected = certificate["connected"]
    cards = [
        (times(certificate["compression"]), "compression", ""),
        ("connected" if connected else "collapsed", "inputs reach outputs" if connected else "no path is left",
         "good" if connected else "bad"),
        (f"{certificate['kept']:,}", f"of {certificate['total']:,} weights", ""),
        (f"{facts.live_share:.3g}%", "of units live", ""),
        *([(str(len(facts.dead_layers)), f"of {len(facts.layers)} layers dead", "bad")] if facts.dead_layers else []),
        (times(certificate["max_compression"]), "is the maximum", ""),
    ]  # fmt: skip
    if facts.compaction is not None:
        cards.append((f"{facts.compaction['parameters'][1]:,}", "parameters after compaction", ""))
    if facts.benchmark is not None:
        faster, what = facts.speedup
        cards.append((ratio(faster)[0], f"faster, measured: {what}", ""))
    items = "".join(
        f'<li><b class="{style}">{escape(value)}</b><span>{escape(what)}</span></li>' for value, what, style in cards
    )
    return f'<ul class="cards">{items}</ul>'


def _certificate(certificate: Mapping[str, Any], dead: Sequence[str]) -> str:
    empty, steps = certificate["empty_layers"], certificate["steps"]
    held = certificate["theorem_held"]
    promise = {True: "held at every step", False: "did not hold at every step", None: "does not apply to this score"}[
        held
    ]
    rows = {
        "connected": "yes, inputs reach outputs" if certificate["connected"] else "NO: no path is left",
        "empty layers": ", ".join(empty) if empty else "none",
        "dead layers": f"{', '.join(dead)}: none of their weights lies on a path" if dead else "none",
        "weights on no path": f"{certificate['idle']:,} (effective compression "
        f"{times(certificate['effective_compression'])})",
        "flow": f"{power_of_two(certificate['flow_log2_before'])} before, "
        f"{power_of_two(certificate['flow_log2'])} after",
        "conservation": _residuals(certificate),
        "Theorem 3's condition": f"{promise} ({len(steps)} steps)" if steps else "steps were not recorded",
        **{f"note {index}": note for index, note in enumerate(certificate["notes"], 1)},
    }
    return settings(rows)


def _residuals(certificate: Mapping[str, Any]) -> str:
    units, layers = certificate["unit_residual"], certificate["layer_residual"]
    parts = [] if units is None else [f"at units within {units:.0e}"]
    if layers is not None:
        parts.append(
            f"at {len(certificate['cuts'])} of {len(certificate['layers'])} layers, which are cuts, within {layers:.0e}"
        )
    return "; ".join(parts) or "nothing to check"


def _layers(facts: Facts) -> str:
    compacted = any(layer.compact_units is not None for layer in facts.layers)
    heads = ["layer", "shape", "weights", "kept", "density", "on a path", "live units", "units", "flow share"]
    rows = [
        [
            (layer.name.removesuffix(".weight"), index), text(" x ".join(map(str, layer.shape))),
            number(layer.total), number(layer.kept), number(100 * layer.density, "%"), number(layer.on_path),
            number(layer.live_units), number(layer.units),
            ("-", -1) if layer.flow_share is None else number(layer.flow_share),
            *([number(layer.compact_units)] if compacted else []),
        ]
        for index, layer in enumerate(facts.layers)
    ]  # fmt: skip
    return table_of("Layers", heads + ["compact units"] * compacted, rows, wide=(1, 2, 5, 7, 8, 9))


def _speed(benchmark: Mapping[str, Any]) -> str:
    rows = [
        [
            text(f"{row['task']}, batch {row['batch']}"), text(row["variant"]), seconds(row["seconds"]),
            (f"{seconds(row['low'])[0]} - {seconds(row['high'])[0]}", row["low"]), ratio(row["ratio"]),
        ]
        for row in benchmark["timings"]
    ]  # fmt: skip
    sizes = [
        [
            text(row["variant"]),
            number(row["parameters"]),
            number(row["flops"] / 1e6),
            number(row["file_bytes"] / 1e6),
        ]
        for row in benchmark["sizes"]
    ]
    return (
        table_of("Times", ["task", "variant", "median", "quartiles", "faster"], rows, wide=(3,))
        + table_of("Sizes", ["variant", "parameters", "MFLOP", "file, MB"], sizes)
        + settings({key: str(value) for key, value in benchmark["settings"].items()}, short=True)
    )


def _compaction(compaction: Mapping[str, Any]) -> str:
    before, after = compaction["parameters"]
    rows = {
        "parameters": f"{before:,} became {after:,}",
        "outputs": f"equal to {compaction['difference']:.0e} in {' and '.join(compaction['modes'])} mode",
        **{f"kept {stay['units']} dead units": stay["reason"] for stay in compaction["stayed"]},
        **{f"note {index}": note for index, note in enumerate(compaction["notes"], 1)},
    }
    return settings(rows)


def _made(facts: Facts) -> str:
    about = {key: setting_text(value) for key, value in facts.about.items() if key not in ("fingerprint", "version")}
    command = f"<pre>{escape(facts.command)}</pre>" if facts.command else ""
    return settings({**about, **facts.versions}, short=True) + command
