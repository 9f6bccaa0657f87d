"""The folder of a pruned network: weights, masks, certificate, report, and how they were made.

weights.safetensors  the weights, including the pruned ones          certificate.json  `certify`
masks.safetensors    one bit per weight                              facts.json        the facts in the report
run.json             the model, the settings, the command            report.html       the report
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..compaction.files import OURS as COMPACT_OURS
from ..errors import SynflowError
from ..masks.files import load_masks, save_masks
from ..masks.results import Masks, StepRecord
from ..models.inputs import shape_of
from ..models.own_files import is_file
from ..models.sources import Source, load_model
from ..models.weights import save_weights
from ..reporting.facts import Facts
from ..reporting.page import page
from ..reporting.stored_facts import STEP, facts_from
from ..support import folders
from ..support.json_files import check_form, json_text, read_json
from .run_files import ABOUT, CERTIFICATE, FACTS, FORMAT, MASKS, OURS, REPORT, RUN, WEIGHTS, WRITTEN

COMPACT = "compact"
# The most outputs of a stored network: more than any data set has classes, few enough to build.
MOST_CLASSES = 10**6
# The most inputs of a stored network, and numbers in all of them: a batch of one is far below.
MOST_INPUTS, MOST_STORED = 100, 2**28


@dataclass(frozen=True)
class Run:
    """A folder that `synflow prune` wrote, with the contents of its run.json."""

    folder: Path
    about: dict[str, Any]

    def masks(self) -> Masks:
        """The masks, with the record of the steps that made them."""
        masks = load_masks(self.folder / MASKS)
        return Masks(masks, masks.about, self.steps())

    def steps(self) -> tuple[StepRecord, ...]:
        """The record of the steps, from the certificate; none if there is no certificate."""
        path = self.folder / CERTIFICATE
        if not path.is_file():
            return ()
        stored = read_json(path)
        try:
            check_form(stored, {"steps": [STEP]}, str(path))
        except SynflowError as cause:
            raise SynflowError(f"{cause}; write it anew with `synflow certify --write`") from cause
        return tuple(StepRecord(**{key: step[key] for key in STEP}) for step in stored["steps"])

    def facts(self) -> Facts:
        """The facts in the report."""
        path = self.folder / FACTS
        return facts_from(read_json(path), str(path))


def check_free(folder: Path, force: bool = False) -> None:
    """Refuse a folder that is not empty: nothing is overwritten without --force."""
    if folder.exists() and not folder.is_dir():
        raise SynflowError(f"{folder} is there already and is no folder; choose another --out")
    folders.check_writable(folder)
    if folders.is_free(folder):
        return
    if not force:
        raise SynflowError(f"{folder} is there already and is not empty; choose another --out, or replace it: --force")
    if not (folder / RUN).is_file():
        raise SynflowError(f"{folder} holds something else than a pruned network, so --force does not replace it")
    folders.refuse_foreign(folder, WRITTEN, OURS)


def write_run(folder: Path, source: Source, masks: Masks, certificate: Any, facts: Facts, command: str) -> None:
    """Write the files of a run, all of them or none; the user's other files in the folder stay.

    The compact form and the benchmark of the previous network are removed.
    """
    about = {"format": FORMAT, **source.settings, "pruning": masks.about, "command": command}
    texts = {
        RUN: json_text(about), CERTIFICATE: json_text(certificate.as_dict()), FACTS: json_text(facts.as_dict()),
        REPORT: page(facts),
    }  # fmt: skip
    writers = {name: partial(_write_text, text) for name, text in texts.items()}
    writers[WEIGHTS] = partial(save_weights, source.model)
    writers[MASKS] = partial(save_masks, masks)
    folders.write(folder, writers, OURS, stale={COMPACT: COMPACT_OURS})


def _write_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


def open_run(folder: Path) -> Run:
    """Read run.json of a folder."""
    if not folder.exists():
        raise SynflowError(
            f"{folder}: there is no such folder; `synflow prune MODEL --compression 100 --out DIR` makes one"
        )
    path = folder / RUN
    if not path.is_file():
        raise SynflowError(f"{folder} holds no pruned network ({RUN} is missing); `synflow prune` writes one")
    folders.settle(folder, OURS)
    about = read_json(path, FORMAT)
    check_form(about, ABOUT, str(path))
    if not 1 <= (about["classes"] or 1) <= MOST_CLASSES:
        raise SynflowError(f"{path} is damaged: classes is {about['classes']}, expected 1 to {MOST_CLASSES:,}")
    if sum(math.prod(shape_of(text)) for text in about["input"][:MOST_INPUTS]) > MOST_STORED:
        raise SynflowError(f"{path} is damaged: its input has more than {MOST_STORED:,} numbers")
    if len(about["input"]) > MOST_INPUTS:
        raise SynflowError(
            f"{path} is damaged: it names {len(about['input']):,} inputs, expected at most {MOST_INPUTS}"
        )
    folders.check(folder, (RUN, WEIGHTS, MASKS), OURS)
    return Run(folder, about)


def rebuild(run: Run, model: str | None = None) -> Source:
    """The model of a run with its weights; a model that is a Python file must be named again, since its code runs."""
    spec = str(model or run.about["model"])
    if model is None and is_file(spec):
        raise SynflowError(
            f"the model of {run.folder} is built by {spec}, and a folder does not get to run code by itself; "
            f"name it: --model {spec}"
        )
    about = run.about
    return load_model(
        spec, inputs=about["input"], classes=about["classes"], seed=about["seed"], weights=run.folder / WEIGHTS
    )


def next_command(command: str, folder: Path, spec: str) -> str:
    """The next command to type; a model that is a Python file has to be named again."""
    named = f" --model {shlex.quote(spec)}" if is_file(spec) else ""
    return f"next: synflow {command} {shlex.quote(str(folder))}{named}"


def refresh_report(run: Run, facts: Facts) -> None:
    """Write new figures into facts.json and report.html; numbers in a forged file may be impossible."""
    try:
        html = page(facts)
    except (ArithmeticError, ValueError) as cause:
        raise SynflowError(f"{run.folder / FACTS} is damaged: it holds numbers that cannot be ({cause})") from cause
    replace_text(run.folder / FACTS, json_text(facts.as_dict()))
    replace_text(run.folder / REPORT, html)


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically; the old file stays if anything fails. A run's own file gets a new checksum."""
    folders.update(path, text.encode(), OURS)
