"""Writing that is all or nothing, reading that says what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError
from synflow.support import atomic_files
from synflow.support.atomic_files import unwritable
from synflow.support.json_files import parse_json
from synflow.support.json_files import read_json as read_plain_json

__all__ = ["append_line", "read_json", "read_lines", "sealed", "write_bytes", "write_drawing", "write_json"]


WAY_OUT = "Make room or choose another folder with --runs, then start again: finished work is kept"


def write_bytes(path: Path, data: bytes, way_out: str = WAY_OUT) -> None:
    """Write a file atomically; its folder is made if needed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise unwritable(path, cause, way_out) from cause
    atomic_files.write_bytes(path, data, way_out)


def write_drawing(path: Path, data: bytes) -> None:
    """Write a table, figure or page that was made of runs; the runs themselves stay as they are."""
    write_bytes(path, data, "Make room or choose another place for it")


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """The content with a checksum of itself, so that damage is noticed."""
    bare = {key: value for key, value in content.items() if key != "checksum"}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    return {**bare, "checksum": hashlib.sha256(text.encode()).hexdigest()[:16]}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A sealed JSON file."""
    write_bytes(path, (json.dumps(sealed(content), indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file whose seal is unbroken."""
    content = read_plain_json(path)
    if sealed(content) != content:
        raise SynflowError(f"{path} is damaged: its contents do not match its checksum")
    return content


def append_line(path: Path, content: dict[str, Any]) -> None:
    """One more line of JSON, on the disk before this returns."""
    try:
        with open(path, "ab") as file:
            file.write((json.dumps(content, sort_keys=True) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as cause:
        raise unwritable(path, cause, WAY_OUT) from cause


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; what a crash left of a last line is passed over."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise SynflowError(f"{path} cannot be read: {cause.strerror or cause}") from cause
    found = []
    for line in text.split(b"\n")[:-1]:
        try:
            found.append(parse_json(line, str(path)))
        except SynflowError:
            break
    return found
