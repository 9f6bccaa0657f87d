"""One look at what the runs of a sweep need, before the first one starts: data, loggers, device, networks, files."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from synflow.errors import SynflowError, named

from ..models.own_files import function_in, is_file, one_line
from .configs import Config, reads_data
from .data import FOLDERS, folder_for
from .loggers import check_loggers
from .methods import load_data, network_of
from .runs import Context

__all__ = ["check_before"]

# These tasks read images whatever the method is.
TRAINING = ("train", "imp", "magnitudes", "timing")


def check_before(configs: Sequence[Config], context: Context) -> None:
    """Refuse a sweep of which a run could not succeed, with the error that the run would have met."""
    if not configs:
        return
    from .tasks import TASKS

    check_loggers(context.loggers)
    _check_device(context.device)
    for task in {config.task for config in configs}:
        named("task", task, TASKS)
    for spec in {spec for config in configs for spec in (config.method, config.schedule) if is_file(spec)}:
        function_in(spec)
    for model, dataset, width in {(config.model, config.dataset, config.width) for config in configs}:
        if not is_file(model):
            with torch.device("meta"):
                network_of(model, dataset, width)
    needing = [config for config in configs if config.task in TRAINING or reads_data(config.method)]
    for dataset in {config.dataset for config in needing}:
        folder_for(dataset, context.data_dir)
        if dataset not in FOLDERS:  # decoding all photographs would take long
            one = next(config for config in needing if config.dataset == dataset)
            load_data(dataset, context.data_dir, one.train_per_class, one.test_per_class)


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as cause:
        raise SynflowError(f"device {name!r} cannot be used: {one_line(cause)}") from cause
