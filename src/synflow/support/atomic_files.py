"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SynflowError

# How names of files begin that are still being written.
UNFINISHED = ".synflow-"


@contextmanager
def replacing(path: str | os.PathLike[str], way_out: str = "") -> Iterator[Path]:
    """A temporary path in the same folder; at the end the file is flushed to the disk and renamed to `path`.

    Readers see the old file or the new one, never a part, and a failure keeps the old one. The temporary name has the
    same suffix, because some writers depend on it. A symbolic link stays a link. Only ordinary files are replaced:
    renaming onto a device such as `/dev/null` would destroy it for every other program.
    """
    try:
        target = Path(os.path.realpath(path))
        special = target.exists() and not target.is_file()
    except (OSError, ValueError) as cause:  # the name is too long, or contains a null byte
        raise SynflowError(f"{os.fspath(path)!r} cannot be the name of a file: {cause}") from cause
    if special:
        raise SynflowError(f"{target} cannot be written: it is a folder or a device; name an ordinary file")
    temporary = target.with_name(f"{UNFINISHED}{secrets.token_hex(8)}{target.suffix}")
    try:
        try:
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as cause:
        raise unwritable(target, cause, way_out) from cause


def write_bytes(path: str | os.PathLike[str], data: bytes, way_out: str = "") -> None:
    """Write a file atomically.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "greeting")
    >>> write_bytes(path, b"hello")
    >>> [file.name for file in path.parent.iterdir()], path.read_bytes()
    (['greeting'], b'hello')
    """
    with replacing(path, way_out) as temporary:
        temporary.write_bytes(data)


def check_path(path: object, what: str) -> None:
    """Refuse an object that is not a path."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise SynflowError(f"path must be that of {what}, got {type(path).__name__}")


def unwritable(path: Path, cause: OSError, way_out: str = "") -> SynflowError:
    """The error for a file that cannot be written."""
    hint = f". {way_out}" if way_out else ""
    return SynflowError(
        f"{path} cannot be written: {cause.strerror or cause}; what was there before is unchanged{hint}"
    )
