"""The names of the files in a folder of `synflow prune`, and tests that recognise files written by synflow.

The folder's manifest lists them. Folders of earlier versions have none: there a file must have the contents that those
versions wrote under its name, or it counts as a file of the user.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import SynflowError
from ..masks.files import load_masks
from ..support import folders
from ..support.json_files import MAYBE_NUMBER, read_json
from ..support.tensor_files import read_shapes
from .own_files import has_form, is_page

RUN, WEIGHTS, MASKS = "run.json", "weights.safetensors", "masks.safetensors"
CERTIFICATE, FACTS, REPORT, BENCH = "certificate.json", "facts.json", "report.html", "bench.json"
WRITTEN = (RUN, WEIGHTS, MASKS, CERTIFICATE, FACTS, REPORT)
FORMAT = 1
ABOUT = {"model": str, "input": [str], "classes": (int, type(None)), "seed": int, "pruning": dict}


def _is_run(path: Path) -> bool:
    return has_form(ABOUT)(path) and read_json(path).get("format") == FORMAT


def _is_masks(path: Path) -> bool:
    try:
        load_masks(path)
    except SynflowError:
        return False
    return True


def _is_weights(path: Path) -> bool:
    """Weights have no mark of their own: they are ours if the masks beside them are ours and fit them."""
    masks = path.with_name(MASKS)
    if not _is_run(path.with_name(RUN)) or not _is_masks(masks):
        return False
    try:
        shapes = read_shapes(path)
    except SynflowError:
        return False
    return all(shapes.get(name) == tuple(mask.shape) for name, mask in load_masks(masks).items())


OURS: folders.Ours = {
    RUN: _is_run,
    WEIGHTS: _is_weights,
    MASKS: _is_masks,
    CERTIFICATE: has_form({"compression": MAYBE_NUMBER, "connected": bool, "kept": int, "total": int, "steps": list}),
    FACTS: has_form({"title": str, "about": dict, "certificate": dict, "layers": list}),
    REPORT: is_page,
    BENCH: has_form({"timings": list, "sizes": list, "settings": dict}),
}
