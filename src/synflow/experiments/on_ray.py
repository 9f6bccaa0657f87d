"""Runs as Ray tasks, on this machine or on a cluster whose nodes share the runs' folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synflow.errors import need

from .configs import Config, from_dict, to_dict
from .places import Outcome, Place, Tell, gather, summary
from .runs import Context, execute

__all__ = ["run_on_ray"]


def run_on_ray(configs: Sequence[Config], root: Path, context: Context, place: Place, tell: Tell) -> Outcome:
    """Do all runs on Ray; a task whose worker dies is tried again by Ray and goes on from the last checkpoint.

    Without an address a local Ray is started and shut down again. On a cluster, root and data_dir must lie on a file
    system that all nodes share. A device other than the CPU asks Ray for one GPU per run.
    """
    ray = need("ray", extra="ray")
    threads, address = place.threads or 1, place.address
    started = not ray.is_initialized()
    if started:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled" if address is None else "token")
        local = (
            {}
            if address
            else {"num_cpus": (place.workers or os.cpu_count() or 1) * threads, "include_dashboard": False}
        )
        ray.init(address=address, log_to_driver=False, logging_level="error", **local)
    needs: dict[str, Any] = {"num_cpus": threads, "max_retries": place.retries, "retry_exceptions": False}
    if context.device not in ("cpu", "mps"):
        needs["num_gpus"] = 1
    task = ray.remote(**needs)(_task)
    try:
        folder = str(root.resolve())
        waiting = {
            task.remote(to_dict(c), folder, dataclasses.asdict(context), threads, place.retries): c for c in configs
        }
        finished = 0
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                del waiting[reference]
                finished += 1
                try:
                    tell(f"[{finished}/{len(configs)}] {ray.get(reference)}")
                except ray.exceptions.RayError as cause:
                    tell(f"[{finished}/{len(configs)}] {type(cause).__name__}: {str(cause).splitlines()[0]}")
    finally:
        if started:
            ray.shutdown()
    return gather(configs, root)


def _task(values: dict[str, Any], root: str, where: dict[str, Any], threads: int, retries: int) -> str:
    """One run, in a Ray worker; errors are in the run's folder, so they need not travel."""
    import torch

    from .configs import identity
    from .local import work

    torch.set_num_threads(threads)
    where["loggers"] = tuple(where["loggers"])
    config, context = from_dict(values), Context(**where)
    # A task that Ray gave up on may still be alive for a moment; `work` waits until the run is free or done.
    work([config], Path(root), context, retries)
    try:
        return f"{identity(config)} {summary(execute(config, root, context))}"
    except Exception as cause:
        return f"{identity(config)} FAILED: {cause}"
