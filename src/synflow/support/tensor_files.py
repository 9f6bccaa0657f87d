"""Tensors in safetensors files, which hold no code."""

from __future__ import annotations

from pathlib import Path

import safetensors
from safetensors.torch import load_file
from torch import Tensor

from ..errors import SynflowError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name."""
    try:
        found: dict[str, Tensor] = load_file(path)
    except (safetensors.SafetensorError, OSError) as cause:
        raise _damaged(path, cause) from cause
    return found


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a file, by name; their numbers are not read."""
    try:
        with safetensors.safe_open(path, "pt") as stored:
            return {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as cause:
        raise _damaged(path, cause) from cause


def _damaged(path: Path, cause: Exception) -> SynflowError:
    return SynflowError(f"{path} is no safetensors file, or it is damaged: {cause}")
