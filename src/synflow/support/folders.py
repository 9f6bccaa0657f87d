"""Folders that synflow writes: all files are replaced or none, and the user's files stay.

`manifest.json` lists the files that synflow wrote, with a checksum each. A write stores all new files under temporary
names and then replaces the manifest, which names them: from then on the new files are valid. Renaming is repeatable, so
the next process that opens the folder after a crash finishes it. A crash before that keeps the old files.

Earlier versions had no manifest. A file under one of our names in such a folder may be the user's own, so each name has
a test that decides by the contents whether synflow wrote the file; only files that pass are replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import SynflowError
from .atomic_files import unwritable, write_bytes
from .json_files import read_json

try:
    import fcntl
except ImportError:  # not on Windows; there two processes must not write to one folder at the same time
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
FORMAT = 1
_TEMPORARY = re.compile(r"\.synflow-[0-9a-f]{16}(\.[a-z]+)?")
Writer = Callable[[Path], object]
Ours = Mapping[str, Callable[[Path], bool]]


def write(folder: Path, writers: Mapping[str, Writer], ours: Ours, stale: Mapping[str, Ours] | None = None) -> None:
    """Replace the named files of a folder by the output of the writers; the user's other files stay.

    `ours` are all names that synflow may write there, each with a test that recognises a file of an earlier version,
    which no manifest lists. `stale` maps subfolders made from the old files to the names that synflow may have written
    there; these files are removed.
    """
    folder = Path(os.path.realpath(folder))
    try:
        created = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            _finish(folder, ours)
            refuse_foreign(folder, writers, ours)
            gone = _written(folder, ours, set(ours) - set(writers))
            try:
                _replace(folder, writers, ours, {}, stale or {})
            except BaseException:
                if created:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                raise
            for name in gone:
                (folder / name).unlink()
    except OSError as cause:
        raise unwritable(folder, cause) from cause


def _replace(
    folder: Path, writers: Mapping[str, Writer], ours: Ours, listed: Mapping[str, str], stale: Mapping[str, Ours]
) -> None:
    """Write files and add them to the manifest, which keeps its entries for unchanged files."""
    pending: dict[str, str] = {}
    try:
        for name, writer in writers.items():
            pending[name] = f".synflow-{secrets.token_hex(8)}{Path(name).suffix}"
            writer(folder / pending[name])
            with open(folder / pending[name], "rb+") as file:
                os.fsync(file.fileno())
        sums = {name: digest(folder / temporary) for name, temporary in pending.items()}
        for inner, names in stale.items():
            remove(folder / inner, names)
        _save(folder, {**listed, **sums}, pending)
        _finish(folder, ours)
    except BaseException:
        _sweep(folder)
        raise


def refuse_foreign(folder: Path, names: Collection[str], ours: Ours) -> None:
    """Refuse a folder in which the user's files have names that synflow is about to write."""
    listed = _listed(folder, ours)
    known = _written(folder, ours, names) if listed is None else listed
    foreign = [name for name in names if name not in known and os.path.lexists(folder / name)]
    if foreign:
        were, them = ("was", "it") if len(foreign) == 1 else ("were", "them")
        rest = "".join(f", {name}" for name in foreign[1:])
        raise SynflowError(
            f"{folder / foreign[0]}{rest} {were} not written by synflow; move {them} away, or choose another folder"
        )


def _written(folder: Path, ours: Ours, names: Collection[str]) -> set[str]:
    """The named files that synflow wrote and that are unchanged, as far as their contents show."""
    sums = _listed(folder, ours)
    there = [name for name in names if (folder / name).is_file()]
    if sums is None:
        return {name for name in there if ours[name](folder / name)}
    return {name for name in there if name in sums and digest(folder / name) == sums[name]}


def update(path: Path, data: bytes, ours: Ours) -> None:
    """Replace or add one file of a folder, with its checksum; without a manifest only write the file.

    Refuses to replace a user's file that has one of our names.
    """
    folder = Path(os.path.realpath(path.parent))
    try:
        if path.name in ours:
            refuse_foreign(folder, (path.name,), ours)
        if path.name not in ours or not (folder / MANIFEST).is_file():
            write_bytes(path, data)
            return
        with _locked(folder):
            _finish(folder, ours)
            writers = {path.name: lambda temporary: temporary.write_bytes(data)}
            _replace(folder, writers, ours, _listed(folder, ours) or {}, {})
    except OSError as cause:
        raise unwritable(path, cause) from cause


def check(folder: Path, needed: Collection[str], ours: Collection[str]) -> None:
    """Finish an interrupted write, then compare the needed files with their checksums.

    Raises `SynflowError` if a file is missing, damaged or from another write. Folders of earlier versions have no
    manifest, so their files are not checked.
    """
    settle(folder, ours)
    sums = _listed(folder, ours)
    if sums is None:
        return
    for name in needed:
        path = folder / name
        if not path.is_file():
            raise SynflowError(f"{folder}: {name} is missing")
        if sums.get(name) != digest(path):
            raise SynflowError(f"{path} is damaged or belongs to another write: its checksum in {MANIFEST} differs")


def settle(folder: Path, ours: Collection[str]) -> None:
    """Finish an interrupted write, if there was one; wait for a write that is under way."""
    if not (folder / MANIFEST).is_file() or not _read(folder, ours)["pending"]:
        return
    try:
        with _locked(folder):
            _finish(folder, ours)
    except OSError as cause:
        raise SynflowError(f"{folder}: an interrupted write cannot be finished: {cause}") from cause


def is_free(folder: Path) -> bool:
    """Whether the folder does not exist, or holds only temporary files of an interrupted write."""
    return not folder.exists() or all(_TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def check_writable(folder: Path) -> None:
    """Refuse a folder that is not writable, before the work whose result would go there."""
    above = Path(os.path.realpath(folder))
    while not above.exists():
        above = above.parent
    probe = above / f".synflow-{secrets.token_hex(8)}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as cause:
        raise unwritable(folder, cause) from cause


def remove(folder: Path, ours: Ours) -> None:
    """Remove the files that synflow wrote to a folder, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    listed = _listed(folder, ours) is not None
    for name in _written(folder, ours, ours) | ({MANIFEST} if listed else set()):
        (folder / name).unlink(missing_ok=True)
    _sweep(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _listed(folder: Path, ours: Collection[str]) -> dict[str, str] | None:
    """Checksums by name, from the manifest; None if there is none."""
    return dict(_read(folder, ours)["files"]) if (folder / MANIFEST).is_file() else None


def _read(folder: Path, ours: Collection[str]) -> dict[str, Any]:
    """The manifest, checked: it may come from an untrusted source, and its names must not lead out of the folder."""
    path = folder / MANIFEST
    about = read_json(path, FORMAT)
    files, pending = about.get("files"), about.get("pending")
    if not isinstance(files, dict) or not isinstance(pending, dict):
        raise SynflowError(f"{path} is damaged: it lists no files")
    for name in (*files, *pending):
        if name not in ours:
            raise SynflowError(f"{path} is damaged: it lists a file {name!r}")
    if not all(isinstance(name, str) and _TEMPORARY.fullmatch(name) for name in pending.values()):
        raise SynflowError(f"{path} is damaged: it lists a temporary file that synflow does not write")
    return about


def _save(folder: Path, sums: Mapping[str, str], pending: Mapping[str, str]) -> None:
    about = {"format": FORMAT, "files": dict(sorted(sums.items())), "pending": dict(pending)}
    write_bytes(folder / MANIFEST, (json.dumps(about, indent=1) + "\n").encode())


def _finish(folder: Path, ours: Collection[str]) -> None:
    """Do the renames that the manifest lists. The folder is locked, so all other temporary files come from interrupted
    writes."""
    if (folder / MANIFEST).is_file():
        about = _read(folder, ours)
        for name, temporary in about["pending"].items():
            with contextlib.suppress(FileNotFoundError):  # renamed before
                os.replace(folder / temporary, folder / name)
        if about["pending"]:
            _save(folder, about["files"], {})
    _sweep(folder)


def _sweep(folder: Path) -> None:
    pending = set(read_json(folder / MANIFEST).get("pending", {}).values()) if (folder / MANIFEST).is_file() else set()
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name) and path.name not in pending:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time; the system releases the lock when the process ends, also after a crash."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """The SHA-256 checksum of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()
