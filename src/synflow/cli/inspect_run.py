"""The work of `synflow inspect`, `certify` and `compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from torch import Tensor

from ..certificates.certificate import certify as certify_model
from ..errors import SynflowError
from ..masks.checks import some
from ..masks.files import load_masks
from ..masks.results import Masks
from ..models.sources import load_model
from ..reporting.comparison import comparison_page
from ..reporting.facts import LayerFacts
from ..reporting.overlap import Overlap, overlaps
from ..support.atomic_files import write_bytes
from ..support.folders import MANIFEST
from ..support.json_files import json_text
from ..support.numbers import percent, setting_text, times
from .options import Origin
from .output import layer_table, print_json, say, say_wrapped, table, watched
from .run_files import CERTIFICATE
from .runs import open_run, rebuild, replace_text

LEGEND = "(overlap: of the weights that either keeps, the share that both keep; by chance: of masks drawn at random)"


def run_inspect(path: Path, json: bool) -> None:
    """Show the contents of the files; a file of masks has less information than a folder."""
    if path.is_dir():
        run = open_run(path)
        masks, facts = run.masks(), run.facts()
        about: dict[str, Any] = {"model": run.about["model"], **masks.about}
        layers, certificate = facts.layers, facts.certificate
        command = run.about.get("command")
    else:
        masks, certificate, command = load_masks(path), None, None
        about, layers = masks.about, tuple(_bare(name, mask) for name, mask in masks.items())
    # Masks alone do not show which weights lie on a path.
    unknown = {"on_path": None, "live_units": None} if certificate is None else {}
    if json:
        print_json({
            "about": about, "command": command, "certificate": certificate,
            "layers": [{**vars(layer), "density": layer.density, **unknown} for layer in layers],
        })  # fmt: skip
        return
    total, kept = sum(layer.total for layer in layers), sum(layer.kept for layer in layers)
    say(f"{path}: {kept:,} of {total:,} weights kept ({times(total / kept if kept else None)})")
    if certificate is not None:
        connected = "connected" if certificate["connected"] else "NOT connected: no path from input to output is left"
        say(f"{connected}; {certificate['idle']:,} kept weights on no path")
        dead = [layer.name for layer in layers if not layer.on_path]
        say_wrapped(f"empty layers {some(certificate['empty_layers'])}; dead layers {some(dead)}", 2)
    # The first line shows the counts and their compression, which may differ from the compression stored in the file.
    told = {"fingerprint", "weights", "kept", "compression"}
    settings = ", ".join(f"{key} {setting_text(value)}" for key, value in about.items() if key not in told)
    say_wrapped(f"made with {settings}", 10)
    if command:
        say_wrapped(f"command   {command}", 10)
    say()
    layer_table(layers, measured=certificate is not None)


def run_certify(path: Path, model: str | None, origin: Origin, write: bool, json: bool) -> None:
    """Measure a pruned network again."""
    if path.is_dir():
        run = open_run(path)
        masks, source = run.masks(), rebuild(run, model)
    else:
        masks = load_masks(path)
        if model is None:
            raise SynflowError(f"{path} holds masks alone; name the model they were made for: --model resnet20")
        source = load_model(
            model, inputs=origin.input or (), classes=origin.classes, seed=origin.seed, weights=origin.weights
        )
    with watched("measuring"):
        certificate = certify_model(source.model, masks, source.example)
    if write:
        if not path.is_dir():
            raise SynflowError("--write needs a folder of `synflow prune`, got a file of masks")
        replace_text(path / CERTIFICATE, json_text(certificate.as_dict()))
    if json:
        print_json(certificate.as_dict())
    else:
        say_wrapped(str(certificate), 16)
    if not certificate.connected:
        raise typer.Exit(1)


def run_compare(paths: list[Path], report: Path | None, force: bool, json: bool) -> None:
    """Compare the first network with each of the others."""
    if len(paths) < 2:
        raise SynflowError("give at least two folders to compare")
    if len(set(paths)) < len(paths):
        raise SynflowError("a folder is named twice; give different ones to compare")
    if report is not None and report.exists() and not force:
        raise SynflowError(f"{report} is there already; choose another name, or replace it: --force")
    every = {str(path): _masks_of(path) for path in paths}
    first, *others = every
    pairs = {name: overlaps(every[first], every[name], first, name) for name in others}
    if json:
        print_json({
            "compared with": first,
            "compression": {name: _compression(masks) for name, masks in every.items()},
            "overlaps": {name: [vars(row) for row in rows] for name, rows in pairs.items()},
        })  # fmt: skip
    else:
        for name, rows in pairs.items():
            for letter, path in (("A", first), ("B", name)):
                say_wrapped(f"{letter} {path} ({_method(every[path])}){_health(Path(path))}", 2)
            say()
            _overlap_table(rows)
            say_wrapped(LEGEND, 1)
            say()
    if report is not None:
        _write_comparison(paths, every, report)
        if not json:
            say(f"written to {report}")


def _overlap_table(rows: Sequence[Overlap]) -> None:
    table(
        ["layer", *((head, "right") for head in ("of", "A", "B", "overlap", "by chance"))],
        [
            [row.name.removesuffix(".weight"), f"{row.total:,}", percent(row.density_a), percent(row.density_b),
             percent(row.overlap) if row.overlap else "none", percent(row.chance) if row.chance else "none"]
            for row in rows
        ],
    )  # fmt: skip


def _write_comparison(paths: Sequence[Path], masks: Mapping[str, Masks], report: Path) -> None:
    if not all(path.is_dir() for path in paths):
        raise SynflowError("--report needs folders of `synflow prune`; a file of masks has no figures to show")
    text = comparison_page({str(path): open_run(path).facts() for path in paths}, masks)
    if (report.parent / MANIFEST).is_file():
        replace_text(report, text)
    else:
        write_bytes(report, text.encode())


def _masks_of(path: Path) -> Masks:
    return open_run(path).masks() if path.is_dir() else load_masks(path)


def _bare(name: str, mask: Tensor) -> LayerFacts:
    units, kept = mask.shape[0] if mask.dim() else 1, int(mask.sum())
    return LayerFacts(name, tuple(mask.shape), mask.numel(), kept, 0, units, 0, None, None)


def _health(path: Path) -> str:
    """The stored findings about a network: connectivity, empty and dead layers."""
    if not path.is_dir():
        return ""
    facts = open_run(path).facts()
    empty, dead = len(facts.certificate["empty_layers"]), len(facts.dead_layers)
    return f": {'connected' if facts.certificate['connected'] else 'NOT connected'}, {empty} empty, {dead} dead layers"


def _compression(masks: Masks) -> float | None:
    kept = sum(int(mask.sum()) for mask in masks.values())
    return sum(mask.numel() for mask in masks.values()) / kept if kept else None


def _method(masks: Masks) -> str:
    return f"{masks.about.get('method', 'unknown method')}, {times(_compression(masks))}"
