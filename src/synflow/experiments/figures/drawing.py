"""What drawing a figure leaves: its files, a table, and what a reader has to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Drawing"]


@dataclass(frozen=True)
class Drawing:
    """Paths of the figure, the rows of the table beside it, and notes below it."""

    paths: tuple[Path, ...]
    table: list[dict[str, Any]]
    notes: tuple[str, ...] = field(default=())
