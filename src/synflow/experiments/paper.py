"""The paper as a program: run experiments, draw their figures from stored results, say beforehand what it will take."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError, named

from .configs import Config, configured, identity
from .figures import EXPERIMENTS, SCALES, Drawing
from .results import to_markdown
from .runs import Context, folder_of, read_result
from .sealed_json import write_drawing
from .sweeps import Outcome, Place, run_sweep, unique
from .tables import read_tables

__all__ = ["configs_of", "draw", "redraw", "reproduce", "stored"]

# What drawing raises where each result has its form, yet not the layers or lengths of its neighbours.
MISFITS = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
IN_WORDS = "\n## In words\n"
# Of a figure that shares a few runs with others, less than this share is no figure.
LEAST_SHARE = 0.1


def configs_of(name: str, scale: str, settings: Mapping[str, Any] | None = None) -> list[Config]:
    """The runs of an experiment at a scale, with other settings where given.

    >>> len(configs_of("fig6", "paper"))
    2196
    """
    named("scale", scale, SCALES)
    named("experiment", name, EXPERIMENTS)
    return unique(configured(config, **(settings or {})) for config in EXPERIMENTS[name].configs(scale))


def stored(configs: Sequence[Config], root: Path) -> tuple[list[dict[str, Any]], int]:
    """The results that are there, in folders of runs or in exported tables, and how many are not."""
    exported = read_tables(root)
    found = [exported.get(identity(config)) or read_result(folder_of(config, root)) for config in configs]
    return [result for result in found if result is not None], found.count(None)


@dataclass(frozen=True)
class Reproduction:
    """What became of an experiment: its runs, and its figure unless nothing could be drawn."""

    name: str
    outcome: Outcome
    drawing: Drawing | None


def reproduce(
    names: Sequence[str],
    scale: str,
    root: Path,
    out: Path,
    context: Context | None = None,
    place: Place | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    command: str = "",
) -> list[Reproduction]:
    """Do the runs that are still to do, then draw; runs that experiments share are done once."""
    made = []
    for name in names:
        configs = configs_of(name, scale, settings)
        tell(f"{name}: {EXPERIMENTS[name].title}, {len(configs)} runs at {scale} scale")
        outcome = run_sweep(configs, root, context, place, tell=tell)
        drawing = draw(name, scale, root, out, settings=settings, command=command) if outcome.done else None
        made.append(Reproduction(name, outcome, drawing))
    return made


def draw(
    name: str,
    scale: str,
    root: Path,
    out: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    command: str = "",
) -> Drawing:
    """Draw a figure, and write the table beside it, from stored results only."""
    configs = configs_of(name, scale, settings)
    results, missing = stored(configs, root)
    if not results:
        raise SynflowError(
            f"{name}: none of its {len(configs)} runs at {scale} scale is in {root}; do them first: "
            f"synflow paper {name} --scale {scale} --runs {shlex.quote(str(root))}"
        )
    try:
        drawing = EXPERIMENTS[name].draw(results, out, scale)
    except SynflowError:
        raise
    except MISFITS as cause:
        raise SynflowError(
            f"{name}: the results in {root} do not fit together ({type(cause).__name__}: {cause}); move them away and "
            f"do them again: synflow paper {name} --scale {scale}"
        ) from cause
    notes = (*drawing.notes, *([f"{missing} of {len(configs)} runs are missing"] if missing else []))
    page = out / f"{name}.md"
    text = _page(name, scale, results, drawing, notes, settings or {}, command) + _written_by_hand(page)
    write_drawing(page, text.encode())
    return Drawing((*drawing.paths, out / f"{name}.md"), drawing.table, notes)


def _written_by_hand(page: Path) -> str:
    """What a person has written on a page, from the heading IN_WORDS on: it stays when the page is made again."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return text[text.index(IN_WORDS) :] if IN_WORDS in text else ""


def _share_run(configs: Sequence[Config], exported: Container[str]) -> float:
    """Which share of some runs is in a table."""
    return sum(identity(config) in exported for config in configs) / max(len(configs), 1)


def redraw(
    folder: Path, out: Path, names: Sequence[str], command: str = "", settings: Mapping[str, Any] | None = None,
    scale: str | None = None,
) -> dict[str, Drawing]:  # fmt: skip
    """Draw the named figures from the tables of a folder without training, by default each at the scale most run."""
    exported = read_tables(folder)
    if not exported:
        raise SynflowError(f"{folder} holds no table of results (*.csv); write one with `synflow results --out`")
    made = {}
    for name in names:
        scales = reversed(SCALES) if scale is None else (scale,)
        share = {one: _share_run(configs_of(name, one, settings), exported) for one in scales}
        best = max(share, key=lambda one: share[one])
        if share[best] >= LEAST_SHARE:
            changes = "".join(f" --set {key}={value}" for key, value in (settings or {}).items())
            runs = f"synflow paper {name} --scale {best} --data-dir DIR{changes}  # does the runs"
            again = f"{runs}\n    {command}  # redraws the figure"
            made[name] = draw(name, best, folder, out, settings=settings, command=again)
    if not made:
        raise SynflowError(
            f"{folder} holds no runs of {', '.join(names)}{f' at {scale} scale' if scale else ''} in its tables, or "
            "less than a tenth of them; draw from the folder of the runs itself: "
            f"synflow paper draw {names[0]} --runs DIR"
        )
    return made


def _page(
    name: str, scale: str, results: Sequence[Mapping[str, Any]], drawing: Drawing, notes: Sequence[str],
    settings: Mapping[str, Any], command: str,
) -> str:  # fmt: skip
    """The table of a figure, with everything needed to make it again."""
    seconds = sum(_seconds(result) for result in results)
    seeds = sorted({result["config"]["seed"] for result in results})
    versions = {(result["about"]["torch"], result["about"]["threads"]) for result in results}
    reduced = "" if scale == "paper" and not settings else (
        f"**Reduced**: {scale} scale"
        + (f", with {', '.join(f'{key}={value}' for key, value in settings.items())}" if settings else "")
        + f". {_not_reduced(name)}\n\n"
    )  # fmt: skip
    made = ", ".join(sorted(f"torch {torch}, {threads} thread{'s' * (threads > 1)}" for torch, threads in versions))
    lines = [
        f"# {name}: {EXPERIMENTS[name].title}\n",
        f"![{EXPERIMENTS[name].title}]({name}.png)\n",
        f"{reduced}{_setting(results)}\n",
        to_markdown(drawing.table),
        *(f"- {note}" for note in notes),
        "",
        f"{_runs(results)}, seeds {', '.join(map(str, seeds))}, {_duration(seconds)} of computing on CPU ({made}).",
    ]
    if command:
        lines.append(f"\n    {command}")
    return "\n".join(lines) + "\n"


def _not_reduced(name: str) -> str:
    """What a figure is made of at the paper's scale, so that a reader of a reduced one knows what is missing."""
    configs = configs_of(name, "paper")
    pairs = list(dict.fromkeys(f"{config.model} on {config.dataset}" for config in configs))
    said = [", ".join(pairs) if len(pairs) <= 4 else f"{len(pairs)} pairs of a network and a data set"]
    if EXPERIMENTS[name].trains:
        said.append("all training images")
        said.append(" or ".join(f"{epochs}" for epochs in sorted({c.recipe.epochs for c in configs})) + " epochs")
    seeds = len({config.seed for config in configs})
    said.append("one seed" if seeds == 1 else f"{seeds} seeds")
    return f"The paper's scale is {', '.join(said)}: {_runs(configs)}."


def _setting(results: Sequence[Mapping[str, Any]]) -> str:
    """Networks, data and training in one sentence each."""
    said = []
    kinds = {
        (*(r["config"][key] for key in ("model", "dataset", "train_per_class")), r["config"]["recipe"]["lr"]): r
        for r in results
    }
    for result in kinds.values():
        config, recipe = result["config"], result["config"]["recipe"]
        width = "" if config["width"] == 1 else f" at {config['width']:g} of its width"
        text = f"{config['model']}{width} on {config['dataset']}"
        if config["task"] in ("train", "imp", "magnitudes", "timing"):
            part = config["train_per_class"]
            images = f"{part} training images per class" if part else "all training images"
            rate = f"learning rate {recipe['lr'] * recipe['lr_factor']:g} ({recipe['lr_schedule']})"
            text += (
                f": {images}, {recipe['epochs']} epochs, batch {recipe['batch_size']}, {recipe['optimizer']}, {rate}"
            )
            tested = config["test_per_class"]
            text += f", weight decay {recipe['weight_decay']:g}; "
            text += f"{tested} test images per class" if tested else "all test images"
        said.append(text + ".")
    return "  \n".join(said)


def _runs(some: Sequence[Any]) -> str:
    return f"{len(some):,} run{'s' * (len(some) != 1)}"


def _seconds(result: Mapping[str, Any]) -> float:
    """How long a run took; `seconds` of a run that was resumed are those of its last part, but epochs count all."""
    return float(max(result["about"]["seconds"], result["outcome"].get("train_seconds") or 0.0))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
