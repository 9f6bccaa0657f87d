"""Files as they were published: found, or asked for; whole, or refused."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from synflow.errors import SynflowError

__all__ = ["missing", "read", "verify"]


def read(path: Path, md5: str | None) -> bytes:
    """A file's bytes, compared with the checksum that was published with it."""
    try:
        data = path.read_bytes()
    except OSError as cause:
        raise SynflowError(f"{path} cannot be read: {cause}") from cause
    verify(data, path, md5)
    return data


def verify(data: bytes, path: Path, md5: str | None) -> None:
    """Refuse bytes of another checksum."""
    # MD5 is what the authors published; it guards against damage and wrong files.
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if md5 is not None and found != md5:
        raise SynflowError(
            f"{path}: MD5 {found}, expected {md5} as published ({len(data):,} bytes); "
            "the file is damaged or another version: fetch it again"
        )


def missing(name: str, root: Path, expected: Mapping[str, str], published: str) -> SynflowError:
    """The error for a data set that is not there: `expected` maps what may lie under the root to what that is."""
    ways = "\n".join(f"  {root / place}: {what}" for place, what in expected.items())
    return SynflowError(
        f"{name} is not under {root}. One of these is expected:\n{ways}\n"
        f"It is published at {published}; unpack it there, or name its folder with --data-dir"
    )
