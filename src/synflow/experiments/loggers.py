"""Metrics of a run as they come, to TensorBoard, MLflow or Weights & Biases, if asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from synflow.errors import named, need

from .configs import Config, identity, to_dict

__all__ = ["LOGGERS", "check_loggers", "open_loggers"]

Log = Callable[[dict[str, Any]], None]


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float) and name != "epoch"}


@contextmanager
def _tensorboard(folder: Path, _: Config) -> Iterator[Log]:
    """Event files in the run's own folder: `tensorboard --logdir runs` shows all runs."""
    writer = need("torch.utils.tensorboard", extra="logging").SummaryWriter(folder / "tensorboard")

    def log(metrics: dict[str, Any]) -> None:
        for name, value in _numbers(metrics).items():
            writer.add_scalar(name, value, int(metrics.get("epoch", 0)))
        writer.flush()

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def _mlflow(folder: Path, config: Config) -> Iterator[Log]:
    """One MLflow run in `mlruns` beside the runs, or where MLFLOW_TRACKING_URI says."""
    mlflow = need("mlflow", extra="logging")
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        # Files need no server and no database; newer versions of MLflow want to be told that this is meant.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = (folder.parent / "mlruns").resolve().as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("synflow")
    number = experiment.experiment_id if experiment else client.create_experiment("synflow")
    run = client.create_run(number, run_name=identity(config)).info.run_id
    settings = to_dict(config)
    for name, value in {**settings, **settings.pop("recipe")}.items():
        client.log_param(run, name, value)

    def log(metrics: dict[str, Any]) -> None:
        for name, value in _numbers(metrics).items():
            client.log_metric(run, name, value, step=int(metrics.get("epoch", 0)))

    try:
        yield log
    finally:
        client.set_terminated(run)


@contextmanager
def _wandb(folder: Path, config: Config) -> Iterator[Log]:
    """A run of the project `synflow` (or WANDB_PROJECT); WANDB_MODE=offline keeps it in the run's own folder."""
    wandb = need("wandb", extra="wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "synflow"), name=identity(config), dir=str(folder),
        config=to_dict(config), settings=wandb.Settings(console="off", silent=True),
    )  # fmt: skip
    try:
        yield lambda metrics: run.log(_numbers(metrics), step=int(metrics.get("epoch", 0)))
    finally:
        run.finish()


LOGGERS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
PACKAGES = {"tensorboard": "logging", "mlflow": "logging", "wandb": "wandb"}


def check_loggers(names: Iterable[str]) -> None:
    """Refuse a logger that there is not, or whose package is not installed."""
    for name in names:
        named("logger", name, LOGGERS)
        need(name, extra=PACKAGES[name])


@contextmanager
def open_loggers(names: Iterable[str], folder: Path, config: Config) -> Iterator[Log]:
    """A function that sends metrics to all the named loggers."""
    names = tuple(names)
    check_loggers(names)
    with ExitStack() as stack:
        logs = [stack.enter_context(LOGGERS[name](folder, config)) for name in names]

        def log(metrics: dict[str, Any]) -> None:
            for one in logs:
                one(metrics)

        yield log
