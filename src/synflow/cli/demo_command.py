"""`synflow demo`: five methods, several compressions, real digits; ends in a table and a report."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import SynflowError
from ..support import folders
from ..support.json_files import NUMBER, json_text
from . import options
from .own_files import has_form, is_page

RESULTS, REPORT = "results.json", "report.html"
OURS = {RESULTS: has_form({"seconds": NUMBER, "outcomes": list, "variants": list, "versions": dict}), REPORT: is_page}
COMPRESSIONS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the report and the figures.")] = Path(
        "synflow-demo"
    ),
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Epochs of each training run.")] = 6,
    compression: Annotated[
        list[float] | None,
        typer.Option(metavar="X", help="Compressions to try. Repeatable.", show_default="10 30 100 300 1000 3000"),
    ] = None,
    width: Annotated[int, typer.Option(metavar="N", min=4, help="Channels of the first layers.")] = 64,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """See it work in three minutes, offline: five methods prune and train a network on real digits.

    Also trains the dense, masked and compact network; ends with a table and an HTML report.
    """
    wanted = sorted(set(compression or COMPRESSIONS))
    if min(wanted) < 1:
        raise SynflowError(f"--compression is at least 1, got {min(wanted):g}")
    _check_free(out, force)
    if not json:
        # Importing torch takes seconds; until then this line is all there is to see.
        print("pruning and training a small network on 1,797 handwritten digits ...", file=sys.stderr, flush=True)
    from .demo_report import figures, report_page, tell
    from .demo_run import run_all
    from .output import print_json

    start = time.perf_counter()
    found = run_all(wanted, width, epochs, seed, threads, quiet=json)
    seconds = time.perf_counter() - start
    texts = {RESULTS: json_text(figures(found, seconds)), REPORT: report_page(found, seconds)}
    folders.write(out, {name: partial(_write, text) for name, text in texts.items()}, OURS)
    if json:
        print_json(figures(found, seconds))
    else:
        tell(found, seconds, out / REPORT)


def _check_free(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise SynflowError(f"{out} is there already and is no folder; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (force and (out / RESULTS).is_file()):
        raise SynflowError(f"{out} is there already and is not empty; choose another --out, or replace a demo: --force")
    folders.refuse_foreign(out, OURS, OURS)
    folders.check_writable(out)


def _write(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
