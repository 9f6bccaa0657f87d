"""A run and its folder: it is done once; a killed run continues from its last checkpoint.

runs/train-resnet20-cifar10-synflow-1a2b3c4d5e6f/
    config.json  metrics.jsonl  masks.safetensors  certificate.json  checkpoint.pt  result.json  failure.json  lock
"""

from __future__ import annotations

import errno
import io
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from synflow import __version__
from synflow.errors import SynflowError, named

from ..models.own_files import digest_of, is_file
from ..support.atomic_files import UNFINISHED
from ..support.json_files import check_form
from .configs import Config, canonical, from_dict, identity, to_dict
from .outcomes import ABOUT_FORM, check_outcome
from .sealed_json import append_line, read_json, read_lines, write_bytes, write_json

__all__ = ["BusyError", "Context", "Run", "execute", "folder_of", "is_done", "read_result"]


# What every reader of a result relies on; a file with the right checksum may still be forged, or of another version.
FORM = {"config": dict, "outcome": dict, "about": ABOUT_FORM}


class BusyError(SynflowError):
    """Another process is at this run."""


@dataclass(frozen=True)
class Context:
    """Where and how runs happen; none of it is part of their identity."""

    data_dir: str | None = None
    device: str = "cpu"
    compile: bool = False
    checkpoint_seconds: float = 10.0
    loggers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """What a task is given: its config, its folder, where it runs, and a listener for each epoch."""

    config: Config
    folder: Path
    context: Context
    log: Callable[[dict[str, Any]], None] = lambda _: None

    def metrics(self) -> list[dict[str, Any]]:
        """The epochs recorded so far."""
        return read_lines(self.folder / "metrics.jsonl")

    def record(self, metrics: dict[str, Any]) -> None:
        """Add an epoch to the record."""
        append_line(self.folder / "metrics.jsonl", metrics)
        self.log(metrics)

    def keep_metrics(self, number: int) -> None:
        """Forget what was recorded after the checkpoint that the run goes on from."""
        path, lines = self.folder / "metrics.jsonl", self.metrics()[:number]
        path.unlink(missing_ok=True)
        for line in lines:
            append_line(path, line)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint atomically."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_bytes(self.folder / "checkpoint.pt", buffer.getvalue())

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint; a damaged one is put aside and the run starts over."""
        path = self.folder / "checkpoint.pt"
        if not path.is_file():
            return None
        try:
            found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return found
        except Exception:
            _put_aside(path)
            return None


def folder_of(config: Config, root: str | os.PathLike[str]) -> Path:
    """Where a run lives."""
    return Path(root) / identity(config)


def is_done(config: Config, root: str | os.PathLike[str]) -> bool:
    """Whether a whole, undamaged result is there."""
    try:
        return read_result(folder_of(config, root)) is not None
    except SynflowError:
        return False


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result in a folder, None while there is none; a damaged one is an error that names the file."""
    path = folder / "result.json"
    if not path.exists():
        return None
    content = read_json(path)
    check_form(content, FORM, str(path))
    try:
        config = from_dict(content["config"])
    except SynflowError as cause:
        raise SynflowError(f"{path} is damaged: {cause}") from cause
    if identity(config) != folder.name:
        raise SynflowError(f"{path} is damaged: it belongs to another run")
    check_outcome(config, content["outcome"], str(path))
    return content


def execute(config: Config, root: str | os.PathLike[str], context: Context | None = None) -> dict[str, Any]:
    """Do a run, or go on with it, or just read its result; raises `BusyError` while another process is at it."""
    from .loggers import open_loggers
    from .tasks import TASKS

    context, config = context or Context(), canonical(config)
    named("task", config.task, TASKS)
    folder, files = folder_of(config, root), files_of(config)
    found = _finished(folder, files, aside=False)
    if found is not None:
        return found
    _make(folder)
    with locked(folder):
        _forget_unfinished(folder)
        found = _finished(folder, files)
        if found is not None:
            return found
        _forget_other_files(folder, files)
        write_json(folder / "config.json", {**to_dict(config), **({"files": files} if files else {})})
        started = time.perf_counter()
        with open_loggers(context.loggers, folder, config) as log:
            run = Run(config, folder, context, log)
            try:
                outcome = TASKS[config.task](run)
            except Exception as cause:
                _write_failure(folder, cause)
                raise
        about = {
            "threads": torch.get_num_threads(), "host": socket.gethostname(), "torch": torch.__version__,
            "synflow": __version__, "seconds": time.perf_counter() - started, "commit": _commit(),
            **({"files": files} if files else {}),
        }  # fmt: skip
        result = {"config": to_dict(config), "outcome": outcome, "about": about}
        write_json(folder / "result.json", result)
        for leftover in ("checkpoint.pt", "failure.json"):
            (folder / leftover).unlink(missing_ok=True)
        return read_json(folder / "result.json")


def _commit() -> str | None:
    """The commit of the checkout that the package is run from, None if it is installed."""
    root = Path(__file__).parents[3]
    with suppress(OSError, IndexError):
        head = (root / ".git" / "HEAD").read_text().split()
        name = head[-1] if head[0] != "ref:" else (root / ".git" / head[1]).read_text().strip()
        return name[:12]
    return None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise SynflowError(
            f"{folder} cannot be made: {cause.strerror or cause}; choose another folder with --runs"
        ) from cause


def files_of(config: Config) -> dict[str, str]:
    """Checksums of the user's own files that a run is made of."""
    return {spec: digest_of(spec) for spec in (config.model, config.method, config.schedule) if is_file(spec)}


def _forget_unfinished(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left; who holds the lock is the only one who writes."""
    for path in folder.glob(f"{UNFINISHED}*"):
        with suppress(OSError):
            path.unlink()


def _forget_other_files(folder: Path, files: Mapping[str, str]) -> None:
    """Start anew a run that was interrupted and whose files the user has changed since."""
    if not files:
        return
    with suppress(SynflowError):
        if read_json(folder / "config.json").get("files") == files:
            return
    for name in ("masks.safetensors", "certificate.json", "checkpoint.pt", "metrics.jsonl"):
        (folder / name).unlink(missing_ok=True)


def _finished(folder: Path, files: Mapping[str, str], aside: bool = True) -> dict[str, Any] | None:
    """The result if there is one; a damaged file is kept under another name (by who holds the lock) and done again."""
    try:
        found = read_result(folder)
    except SynflowError:
        if aside:
            _put_aside(folder / "result.json")
        return None
    before = {} if found is None else found["about"].get("files", {})
    for spec, digest in files.items():
        if found is not None and isinstance(before, dict) and before.get(spec, digest) != digest:
            raise SynflowError(
                f"{folder} was done with another version of {spec.rpartition(':')[0]}; remove the folder, or choose "
                "another one with --runs"
            )
    return found


def _put_aside(path: Path) -> None:
    for number in range(1000):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            path.rename(aside)
            return


def _write_failure(folder: Path, cause: Exception) -> None:
    attempts = 1
    with suppress(SynflowError, KeyError, TypeError, ValueError):
        attempts += int(read_json(folder / "failure.json")["attempts"])
    # The cause itself may be that nothing can be written; it is raised either way.
    with suppress(SynflowError):
        write_json(
            folder / "failure.json",
            {
                "error": str(cause), "kind": type(cause).__name__, "attempts": attempts,
                "traceback": "".join(traceback.format_exception(cause)),
            },
        )  # fmt: skip


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system frees it when the process ends, however it ends, so none goes stale."""
    import fcntl

    path = folder / "lock"
    try:
        file = open(path, "a+")  # noqa: SIM115  (open as long as it is locked)
    except OSError as cause:
        raise SynflowError(f"{path} cannot be written: {cause.strerror or cause}; choose another folder") from cause
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            if cause.errno in (errno.EWOULDBLOCK, errno.EACCES):
                holder = path.read_text().strip() or "another process"
                raise BusyError(f"{folder.name} is being done by {holder}") from cause
            raise SynflowError(
                f"{path} cannot be locked: {cause.strerror}; keep runs on a file system with locks (flock)"
            ) from cause
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        except OSError as cause:
            raise SynflowError(f"{path} cannot be written: {cause.strerror or cause}; make room") from cause
        yield
    finally:
        # Closing flushes; on a full disk that would fail again and hide the first error.
        with suppress(OSError):
            file.close()
