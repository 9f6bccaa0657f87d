"""Facts from their file: every value that a report shows is checked first, because files can be forged."""

from __future__ import annotations

from typing import Any

from ..errors import SynflowError
from ..support.json_files import MAYBE_NUMBER, NUMBER, check_form
from .facts import Facts, LayerFacts

MAYBE_INT = (int, type(None))
STEP = {
    "index": int, "density": NUMBER, "kept": int, "flow_log2": MAYBE_NUMBER, "pruned_fraction": MAYBE_NUMBER,
    "substeps": int,
}  # fmt: skip
CERTIFICATE = {
    "compression": MAYBE_NUMBER, "effective_compression": MAYBE_NUMBER, "max_compression": MAYBE_NUMBER,
    "theorem_held": (bool, type(None)), "connected": bool, "kept": int, "total": int, "idle": int,
    "flow_log2_before": MAYBE_NUMBER, "flow_log2": MAYBE_NUMBER, "unit_residual": MAYBE_NUMBER,
    "layer_residual": MAYBE_NUMBER, "empty_layers": [str], "cuts": [str], "layers": list, "notes": [str],
    "steps": [STEP],
}  # fmt: skip
LAYER = {
    "name": str, "shape": [int], "total": int, "kept": int, "on_path": int, "units": int, "live_units": int,
    "flow_share": MAYBE_NUMBER, "flow_share_before": MAYBE_NUMBER, "compact_units": MAYBE_INT,
}  # fmt: skip
COMPACTION = {
    "parameters": [int], "difference": MAYBE_NUMBER, "modes": [str], "notes": [str],
    "stayed": [{"units": int, "reason": str}],
}  # fmt: skip
TIMING = {
    "task": str, "batch": int, "variant": str, "seconds": NUMBER, "low": NUMBER, "high": NUMBER, "ratio": NUMBER,
}  # fmt: skip
SIZE = {"variant": str, "parameters": int, "flops": NUMBER, "file_bytes": NUMBER}
FACTS = {
    "title": str, "about": dict, "certificate": CERTIFICATE, "layers": [LAYER], "units": [[NUMBER]],
    "compaction": (COMPACTION,), "benchmark": ({"timings": [TIMING], "sizes": [SIZE], "settings": dict},),
    "versions": dict, "command": (str, type(None)),
}  # fmt: skip


def facts_from(stored: dict[str, Any], name: str = "facts.json") -> Facts:
    """Facts from their plain form; invalid values are refused, with `name` in the error."""
    check_form(stored, FACTS, name)
    for layer in stored["layers"]:
        if not (0 <= layer["kept"] <= layer["total"] > 0 and 0 <= layer["live_units"] <= layer["units"] > 0):
            raise SynflowError(f"{name} is damaged: the counts of layer {layer['name']!r} cannot be")
    if any(len(pair) != 2 or min(pair) <= 0 for pair in stored["units"]):
        raise SynflowError(f"{name} is damaged: units are pairs of flows above 0")
    if stored["compaction"] is not None and len(stored["compaction"]["parameters"]) != 2:
        raise SynflowError(f"{name} is damaged: compaction.parameters are the numbers before and after")
    layers = tuple(LayerFacts(**{**row, "shape": tuple(row["shape"])}) for row in _known(stored["layers"], LAYER))
    units = tuple((float(a), float(b)) for a, b in stored["units"])
    versions = {key: str(value) for key, value in stored["versions"].items()}
    known = {key: stored[key] for key in FACTS}
    return Facts(**{**known, "layers": layers, "units": units, "versions": versions})


def _known(rows: list[dict[str, Any]], form: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows with only the keys of their form; a later version may have written more."""
    return [{key: row[key] for key in form} for row in rows]
