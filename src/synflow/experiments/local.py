"""Worker processes on this machine: each takes the next run that nobody else is at, and a dead one is replaced."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synflow.errors import SynflowError

from ..support.json_files import check_form
from .configs import Config, from_dict, identity, to_dict
from .places import Outcome, Place, Tell, gather, summary
from .runs import BusyError, Context, execute, folder_of, is_done
from .sealed_json import read_json, write_json

__all__ = ["run_local", "work"]

# Errors that the next attempt would meet again.
PERMANENT = ("SynflowError", "MissingExtraError", "NoRuleError")


def run_local(configs: Sequence[Config], root: Path, context: Context, place: Place, tell: Tell) -> Outcome:
    """Do all runs in worker processes, one per core by default, the cores divided among them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = max(1, min(place.workers or cores, len(configs)))
    threads = place.threads or max(1, cores // workers)
    order = _write_order(configs, root, context, place.retries)
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "synflow.experiments.local", str(order), str(number), str(workers)]
        return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)

    running = {number: start(number) for number in range(workers)}
    left = place.retries * len(configs) + workers  # replacements, so that a machine that kills everything ends too
    reported: set[str] = set()
    try:
        while running:
            time.sleep(0.05)
            _report(configs, root, reported, tell)
            for number, process in list(running.items()):
                code = process.poll()
                if code is None:
                    continue
                del running[number]
                if code != 0 and left > 0:
                    left -= 1
                    tell(f"worker {number} ended with code {code}; starting another")
                    running[number] = start(number)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    order.unlink(missing_ok=True)
    _report(configs, root, reported, tell)
    return gather(configs, root)


def _write_order(configs: Sequence[Config], root: Path, context: Context, retries: int) -> Path:
    """What the workers are to do, in a file: command lines are short."""
    path = root / f".order-{os.getpid()}-{time.time_ns()}.json"
    content = {
        "configs": [to_dict(config) for config in configs], "context": dataclasses.asdict(context), "retries": retries,
    }  # fmt: skip
    write_json(path, content)
    return path


def _report(configs: Sequence[Config], root: Path, reported: set[str], tell: Tell) -> None:
    for config in configs:
        name = identity(config)
        if name not in reported and (folder_of(config, root) / "result.json").exists() and is_done(config, root):
            reported.add(name)
            result = read_json(folder_of(config, root) / "result.json")
            tell(f"[{len(reported)}/{len(configs)}] {name} {summary(result)}")


def work(configs: Sequence[Config], root: Path, context: Context, retries: int, pause: float = 0.2) -> None:
    """Do the remaining runs until each is done, has failed for good, or is held by another worker."""
    waiting = list(configs)
    while waiting:
        progressed, busy = False, []
        for config in waiting:
            if is_done(config, root) or not _worth_trying(folder_of(config, root), retries):
                progressed = True
                continue
            try:
                execute(config, root, context)
                progressed = True
            except BusyError:
                busy.append(config)
            except Exception:
                progressed = True
                if _worth_trying(folder_of(config, root), retries):
                    busy.append(config)
        waiting = busy
        # Whoever holds the rest may yet die: stay until they are done.
        if waiting and not progressed:
            time.sleep(pause)


def _worth_trying(folder: Path, retries: int) -> bool:
    try:
        failure = read_json(folder / "failure.json")
        check_form(failure, {"kind": str, "attempts": int}, str(folder / "failure.json"))
    except SynflowError:
        return True
    return failure["kind"] not in PERMANENT and int(failure["attempts"]) <= retries


def _main(arguments: Sequence[str]) -> None:
    order, number, workers = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    content: dict[str, Any] = read_json(order)
    content["context"]["loggers"] = tuple(content["context"]["loggers"])
    configs = [from_dict(values) for values in content["configs"]]
    # Workers begin at different places, so that they seldom want the same run.
    begin = number * len(configs) // workers
    work(configs[begin:] + configs[:begin], order.parent, Context(**content["context"]), content["retries"])


if __name__ == "__main__":
    _main(sys.argv[1:])
