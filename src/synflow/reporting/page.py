"""The report as one HTML file: nothing is fetched, light and dark, for screens, phones and paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from torch import Tensor

from .facts import Facts
from .figures import compare_density, compare_live, figures_of
from .overlap import overlaps

__all__ = ["Cell", "comparison_page", "document", "page", "plots", "section", "table_of"]

Cell = tuple[str, float | str]  # what is shown, and what it is sorted by

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(facts: Facts) -> str:
    """The report of one pruned network."""
    about, certificate = facts.about, facts.certificate
    method = str(about.get("method", "masks"))
    sub = f"{method}, {_times(certificate['compression'])}: {certificate['kept']:,} of {certificate['total']:,} weights"
    parts = [
        _cards(facts),
        section("Certificate", _certificate(certificate)),
        section("Pictures", plots(figures_of(facts))),
        section("Layers", _layers(facts)),
    ]
    if facts.benchmark is not None:
        parts.append(section("Measured speed", _speed(facts.benchmark)))
    if facts.compaction is not None:
        parts.append(section("Compaction", _compaction(facts.compaction)))
    parts.append(section("How it was made", _made(facts)))
    return document(facts.title, sub, parts)


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
            (name, name), _text(str(facts.about.get("method", "-"))), _number(facts.certificate["compression"], "x"),
            _number(facts.certificate["kept"]), _yes(facts.certificate["connected"]),
            _number(len(facts.certificate["empty_layers"])), _effective(facts.certificate),
            _number(_live_share(facts), "%"), *([_ratio(_speedup(facts)[0])] if timed else []),
        ]
        for name, facts in runs.items()
    ]  # fmt: skip
    heads = ["network", "method", "compression", "kept", "connected", "empty layers", "effective", "live units"]
    made = [
        *extra,
        section("Networks", table_of("Pruned networks", heads + ["faster"] * timed, rows, wide=(3, 6))),
        section("Layer by layer", plots([compare_density(runs), compare_live(runs)])),
        section("Density of each layer", _densities(runs)),
    ]
    if len(masks) > 1:
        made.append(section("Overlap of the masks", _overlaps(masks)))
    first = next(iter(runs.values()))
    made.append(section("How it was made", _settings(first.versions, short=True) + _commands(runs)))
    return document(title, sub or f"{len(runs)} pruned networks of {first.title}", made)


def document(title: str, sub: str, sections: Iterable[str]) -> str:
    """A whole HTML document around sections."""
    here = files(__package__)
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)} - synflow</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<style>\n{style}</style>\n</head>\n<body>\n'
        f'<main>\n<header><div><h1>{escape(title)}</h1><p class="sub">{escape(sub)}</p></div>'
        f'<button type="button" class="theme" hidden>Dark theme</button></header>\n'
        + "\n".join(sections)
        + f"\n<footer>Made by synflow. Nothing in this file is loaded from elsewhere.</footer>\n</main>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def section(title: str, body: str) -> str:
    """A part of the page under its heading."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>"


def plots(figures: Sequence[str]) -> str:
    """Figures side by side where there is room."""
    return f'<div class="plots">{"".join(figures)}</div>' if figures else "<p>There is nothing to draw.</p>"


def table_of(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], wide: Sequence[int] = ()) -> str:
    """A table that sorts by a click on a heading; columns in `wide` are left out on a phone."""
    extra = [' class="wide"' if index in wide else "" for index in range(len(heads))]
    top = "".join(
        f'<th scope="col"{extra[i]}><button type="button">{escape(head)}</button></th>' for i, head in enumerate(heads)
    )
    body = "".join(
        "<tr>" + "".join(f'<td{extra[i]} data-value="{escape(str(key))}">{_breakable(text)}</td>'
                         for i, (text, key) in enumerate(row)) + "</tr>\n"
        for row in rows
    )  # fmt: skip
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="sortable">'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def _breakable(text: str) -> str:
    """Long names break after a dot, where they must."""
    return escape(text).replace(".", ".<wbr>") if text[:1].isalpha() else escape(text)


def _cards(facts: Facts) -> str:
    certificate = facts.certificate
    connected = certificate["connected"]
    cards = [
        (_times(certificate["compression"]), "compression", ""),
        ("connected" if connected else "collapsed", "inputs reach outputs" if connected else "no path is left",
         "good" if connected else "bad"),
        (f"{certificate['kept']:,}", f"of {certificate['total']:,} weights", ""),
        (f"{_live_share(facts):.3g}%", "of units live", ""),
        (_times(certificate["max_compression"]), "is the maximum", ""),
    ]  # fmt: skip
    if facts.compaction is not None:
        cards.append((f"{facts.compaction['parameters'][1]:,}", "parameters after compaction", ""))
    if facts.benchmark is not None:
        ratio, what = _speedup(facts)
        cards.append((_ratio(ratio)[0], f"faster, measured: {what}", ""))
    items = "".join(
        f'<li><b class="{style}">{escape(value)}</b><span>{escape(what)}</span></li>' for value, what, style in cards
    )
    return f'<ul class="cards">{items}</ul>'


def _certificate(certificate: Mapping[str, Any]) -> str:
    empty, steps = certificate["empty_layers"], certificate["steps"]
    held = certificate["theorem_held"]
    promise = {True: "held at every step", False: "did not hold at every step", None: "does not apply to this score"}[
        held
    ]
    rows = {
        "connected": "yes, inputs reach outputs" if certificate["connected"] else "NO: no path is left",
        "empty layers": ", ".join(empty) if empty else "none",
        "weights on no path": f"{certificate['idle']:,} (effective compression "
        f"{_times(certificate['effective_compression'])})",
        "flow": f"{_power(certificate['flow_log2_before'])} before, {_power(certificate['flow_log2'])} after",
        "conservation": _residuals(certificate),
        "Theorem 3's condition": f"{promise} ({len(steps)} steps)" if steps else "steps were not recorded",
        **{f"note {index}": note for index, note in enumerate(certificate["notes"], 1)},
    }
    return _settings(rows)


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
            (layer.name.removesuffix(".weight"), index), _text(" x ".join(map(str, layer.shape))),
            _number(layer.total), _number(layer.kept), _number(100 * layer.density, "%"), _number(layer.on_path),
            _number(layer.live_units), _number(layer.units),
            ("-", -1) if layer.flow_share is None else _number(layer.flow_share),
            *([_number(layer.compact_units)] if compacted else []),
        ]
        for index, layer in enumerate(facts.layers)
    ]  # fmt: skip
    return table_of("Layers", heads + ["compact units"] * compacted, rows, wide=(1, 2, 5, 7, 8, 9))


def _overlaps(masks: Mapping[str, Mapping[str, Tensor]]) -> str:
    """For each pair, of the weights that either keeps the share that both keep."""
    rows = [
        [_text(a), *(_number(100 * overlaps(masks[a], masks[b], a, b)[-1].overlap, "%") for b in masks)] for a in masks
    ]
    said = "<p>Of the weights that either of two networks keeps, the share that both keep.</p>"
    return said + table_of("Overlap of the masks", ["network", *masks], rows)


def _densities(runs: Mapping[str, Facts]) -> str:
    names = [layer.name for layer in next(iter(runs.values())).layers]
    by = {run: {layer.name: layer for layer in facts.layers} for run, facts in runs.items()}
    rows = [
        [
            (name.removesuffix(".weight"), index),
            *(_number(100 * by[run][name].density, "%") if name in by[run] else ("-", -1) for run in runs),
        ]
        for index, name in enumerate(names)
    ]
    return table_of("Density of each layer", ["layer", *runs], rows)


def _speed(benchmark: Mapping[str, Any]) -> str:
    rows = [
        [
            _text(f"{row['task']}, batch {row['batch']}"), _text(row["variant"]), _seconds(row["seconds"]),
            (f"{_seconds(row['low'])[0]} - {_seconds(row['high'])[0]}", row["low"]), _ratio(row["ratio"]),
        ]
        for row in benchmark["timings"]
    ]  # fmt: skip
    sizes = [
        [
            _text(row["variant"]),
            _number(row["parameters"]),
            _number(row["flops"] / 1e6),
            _number(row["file_bytes"] / 1e6),
        ]
        for row in benchmark["sizes"]
    ]
    return (
        table_of("Times", ["task", "variant", "median", "quartiles", "faster"], rows, wide=(3,))
        + table_of("Sizes", ["variant", "parameters", "MFLOP", "file, MB"], sizes)
        + _settings({key: str(value) for key, value in benchmark["settings"].items()}, short=True)
    )


def _compaction(compaction: Mapping[str, Any]) -> str:
    before, after = compaction["parameters"]
    rows = {
        "parameters": f"{before:,} became {after:,}",
        "outputs": f"equal to {compaction['difference']:.0e} in {' and '.join(compaction['modes'])} mode",
        **{f"kept {stay['units']} dead units": stay["reason"] for stay in compaction["stayed"]},
        **{f"note {index}": note for index, note in enumerate(compaction["notes"], 1)},
    }
    return _settings(rows)


def _made(facts: Facts) -> str:
    about = {key: _plain(value) for key, value in facts.about.items() if key not in ("fingerprint", "version")}
    command = f"<pre>{escape(facts.command)}</pre>" if facts.command else ""
    return _settings({**about, **facts.versions}, short=True) + command


def _commands(runs: Mapping[str, Facts]) -> str:
    commands = list(dict.fromkeys(facts.command for facts in runs.values() if facts.command))
    return f"<pre>{escape(chr(10).join(commands))}</pre>" if commands else ""


def _settings(rows: Mapping[str, str], short: bool = False) -> str:
    pairs = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in rows.items())
    return f'<dl class="short">{pairs}</dl>' if short else f"<dl>{pairs}</dl>"


def _effective(certificate: Mapping[str, Any]) -> Cell:
    return _number(certificate["effective_compression"], "x") if certificate["connected"] else ("no path", -1)


def _live_share(facts: Facts) -> float:
    return 100 * sum(layer.live_units for layer in facts.layers) / max(1, sum(layer.units for layer in facts.layers))


def _speedup(facts: Facts) -> tuple[float | None, str]:
    """How many times faster the compact network was in the first task that was timed, and what that was."""
    rows = (facts.benchmark or {}).get("timings", ())
    row = next((row for row in rows if row["variant"] == "compact"), None)
    return (None, "") if row is None else (row["ratio"], f"{row['task']}, batch {row['batch']}")


def _ratio(value: float | None) -> Cell:
    return ("-", -1) if value is None else (f"{value:.2f}x" if value < 100 else f"{value:,.0f}x", value)


def _text(value: str) -> Cell:
    return value, value


def _yes(value: bool) -> Cell:
    return ("yes", 1) if value else ("NO", 0)


def _number(value: float | None, unit: str = "") -> Cell:
    if value is None:
        return "unlimited", "Infinity"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return text + unit, value


def _seconds(value: float) -> Cell:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.2f} s", value


def _times(value: float | None) -> str:
    return (
        "unlimited" if value is None or value == float("inf") else f"{value:,.4g}x" if value < 1e4 else f"{value:,.0f}x"
    )


def _power(log2: float | None) -> str:
    return "none" if log2 is None or log2 == float("-inf") else f"2^{log2:.1f}"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
