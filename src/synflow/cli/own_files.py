"""Did synflow write this file? Told by its contents, where no manifest tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import SynflowError
from ..support.json_files import check_form, read_json

__all__ = ["has_form", "is_page"]

# The title that ends every page of synflow's is within so many bytes of its start: the name of a model is a line.
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
