"""Did synflow write this file? Decided by its contents, if there is no manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import SynflowError
from ..support.json_files import check_form, read_json

# The title of every page of synflow ends within this many bytes: it holds the name of a model, which is one line.
TITLE_WITHIN = 4096


def has_form(form: dict[str, Any]) -> Callable[[Path], bool]:
    """A test of whether a file is a JSON object of this form."""

    def fits(path: Path) -> bool:
        try:
            check_form(read_json(path), form, path.name)
        except SynflowError:
            return False
        return True

    return fits


def is_page(path: Path) -> bool:
    """Is this an HTML page with the title of a report?"""
    with path.open("rb") as file:
        return b" - synflow</title>" in file.read(TITLE_WITHIN)
