"""The compiled loops of kernels.py, where numba is installed (the extra `fast`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("synflow")


@cache
def kernels() -> Any:
    """The module, loaded when it is first asked for; None without numba."""
    try:
        from . import kernels as loops
    except ImportError as cause:
        log.debug("light weights are found without compiled loops (pip install 'synflow[fast]'): %s", cause)
        return None
    return loops


def loops_for_all(tensors: Iterable[Tensor], least: int) -> Any:
    """The module, loaded now, if it reads all of these tensors and they hold at least this many numbers."""
    tensors = list(tensors)
    serve = all(tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64) for tensor in tensors)
    return kernels() if serve and sum(tensor.numel() for tensor in tensors) >= least else None
