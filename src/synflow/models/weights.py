"""Weights of models in safetensors files; nothing is ever unpickled."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ..compaction.files import packed
from ..compaction.record.tape import tensors
from ..errors import SynflowError
from ..masks.checks import some
from ..support.tensor_files import read_shapes, read_tensors

# A zip archive (torch.save) and a bare pickle.
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def save_weights(model: nn.Module, path: Path) -> None:
    """Write parameters and buffers."""
    path.write_bytes(packed(model))


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into a model; if names or shapes do not fit, nothing is changed."""
    check_weights(model, path)
    state = read_tensors(path)
    with torch.no_grad():
        for name, tensor in tensors(model).items():
            if name in state:
                tensor.copy_(state[name])


def check_weights(model: nn.Module, path: Path) -> None:
    """Refuse a file whose names and shapes do not fit a model; reads no weights, so the model may be on meta."""
    if not path.is_file():
        raise SynflowError(f"{path}: there is no such file; leave --weights out to start from fresh ones")
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(PICKLES):
        raise SynflowError(
            f"{path} is a pickle, which can run any code when it is read, so synflow does not open it; write it anew "
            'with safetensors.torch.save_file(torch.load(path, weights_only=True), "weights.safetensors")'
        )
    shapes = read_shapes(path)
    own, state = tensors(model), model.state_dict()  # it has tied tensors under every name, and not all buffers
    missing = [name for name in own if name in state and name not in shapes]
    unknown = [name for name in shapes if name not in own and name not in state]
    for names, what in ((missing, "lacks"), (unknown, "has an unknown")):
        if names:
            raise SynflowError(
                f"{path} does not fit {type(model).__name__}: it {what} {some(names, 1)}; a file that fits has the "
                "names of the model's state_dict"
            )
    for name, tensor in own.items():
        if name in shapes and shapes[name] != tuple(tensor.shape):
            raise SynflowError(
                f"{path}: {name} has shape {shapes[name]}, expected {tuple(tensor.shape)}; "
                "is it of another model, or of another number of classes (--classes)?"
            )
