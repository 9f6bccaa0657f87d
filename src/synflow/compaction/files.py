"""A compact network on disk: a folder of `weights.safetensors`, `masks.safetensors` and a readable `compaction.json`.

No code is stored: the dense model is built by its own class, cut by the record, and given the weights.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ..errors import SynflowError
from ..masks.attach import attach, bake
from ..masks.files import load_masks, save_masks
from .cut.surgery import shrink, tensors
from .result import Compaction, Stayed, compaction_of

__all__ = ["load_compact", "save_compact"]

Model = TypeVar("Model", bound=nn.Module)
FORMAT = 1
_RECORD, _WEIGHTS, _MASKS = "compaction.json", "weights.safetensors", "masks.safetensors"


def save_compact(small: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a compact network to a folder, all of it or nothing; an older one there is replaced.

    >>> from synflow.compaction import compact
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> small = compact(model, torch.ones(1, 3), {"2.weight": torch.tensor([[True, False, False, True]] * 2)})
    >>> folder = Path(tempfile.mkdtemp(), "small")
    >>> save_compact(small, folder)
    >>> load_compact(model, folder)[0]
    Linear(in_features=3, out_features=2, bias=True)
    """
    folder = Path(folder)
    compaction = compaction_of(small)
    if folder.exists() and not (folder / _RECORD).is_file():
        raise SynflowError(f"{folder} is there already and holds no compact network; choose another folder")
    plain = copy.deepcopy(small)
    masks = bake(plain)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as made:
        new = Path(made, "new")
        new.mkdir()
        save_file({name: t.detach().contiguous().cpu() for name, t in tensors(plain).items()}, new / _WEIGHTS)
        if masks:
            save_masks(masks, new / _MASKS)
        record = dataclasses.asdict(compaction)
        files = {path.name: _digest(path) for path in sorted(new.iterdir())}
        about = {"format": FORMAT, "model": type(small).__qualname__, "training": small.training, "sha256": files}
        (new / _RECORD).write_text(json.dumps({**about, "compaction": record}, indent=1) + "\n")
        if folder.exists():
            folder.rename(Path(made, "old"))
        new.rename(folder)


def load_compact(dense_model: Model, folder: str | os.PathLike[str]) -> Model:
    """The compact network of a folder, from a dense model of the same kind (a fresh one; it is not changed)."""
    folder = Path(folder)
    about = _read(folder)
    small = copy.deepcopy(dense_model)
    bake(small)
    try:
        compaction = _record(about["compaction"])
        _check(compaction, small)
        training = bool(about["training"])
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as cause:
        if isinstance(cause, SynflowError):
            raise
        raise SynflowError(f"{folder / _RECORD} is damaged: {type(cause).__name__}: {cause}") from cause
    dense = {name: tuple(tensor.shape) for name, tensor in tensors(small).items()}
    for name, shape in compaction.shapes.items():
        if dense.get(name) != shape:
            found = f"has shape {dense[name]}" if name in dense else "is not there"
            raise SynflowError(
                f"{folder}: in the given {type(dense_model).__name__} {name} {found}, expected {shape}; "
                "pass the dense model that was compacted"
            )
    shrink(small, compaction.kept, compaction.attributes)
    weights = load_file(folder / _WEIGHTS)
    own = tensors(small)
    if set(weights) != set(own):
        odd = sorted(set(weights) ^ set(own))
        raise SynflowError(f"{folder}: {odd[0]} is in only one of the saved network and {type(dense_model).__name__}")
    with torch.no_grad():
        for name, tensor in own.items():
            if tensor.shape != weights[name].shape:
                raise SynflowError(
                    f"{folder}: {name} is {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}; "
                    "pass the dense model that was compacted"
                )
            tensor.copy_(weights[name])
    if _MASKS in about["sha256"]:
        attach(small, load_masks(folder / _MASKS, small))
    small.train(training)
    object.__setattr__(small, "compaction", compaction)
    return small


def _read(folder: Path) -> dict[str, Any]:
    path = folder / _RECORD
    if not path.is_file():
        raise SynflowError(f"{folder} holds no compact network ({_RECORD} is missing); write one with save_compact")
    try:
        about: dict[str, Any] = json.loads(path.read_text())
        version, files = about["format"], about["sha256"]
    except (ValueError, KeyError, TypeError) as cause:
        raise SynflowError(f"{path} is damaged: {cause}") from cause
    if version != FORMAT:
        raise SynflowError(f"{path} has format {version}, this version of synflow reads format {FORMAT}")
    if not isinstance(files, dict) or _WEIGHTS not in files:
        raise SynflowError(f"{path} is damaged: it does not list {_WEIGHTS}")
    for name, digest in files.items():
        if name not in (_WEIGHTS, _MASKS):  # the names of a file from elsewhere lead nowhere else
            raise SynflowError(f"{path} is damaged: it speaks of a file {name!r}")
        if not (folder / name).is_file():
            raise SynflowError(f"{folder}: {name} is missing")
        if _digest(folder / name) != digest:
            raise SynflowError(f"{folder / name} is damaged or does not belong to {_RECORD}: its checksum differs")
    return about


def _record(stored: dict[str, Any]) -> Compaction:
    return Compaction(
        kept={name: {int(dim): i for dim, i in dims.items()} for name, dims in stored["kept"].items()},
        shapes={name: tuple(shape) for name, shape in stored["shapes"].items()},
        attributes={
            path: {name: tuple(size) if isinstance(size, list) else size for name, size in values.items()}
            for path, values in stored["attributes"].items()
        },
        parameters=(stored["parameters"][0], stored["parameters"][1]),
        stayed=tuple(Stayed(s["reason"], s["units"], tuple(s["where"])) for s in stored["stayed"]),
        notes=tuple(stored["notes"]),
        difference=stored["difference"],
        modes=tuple(stored["modes"]),
    )


def _check(compaction: Compaction, model: nn.Module) -> None:
    """A record from elsewhere may name indices and sizes of the model, and nothing more."""
    for name, dims in compaction.kept.items():
        for dim, indices in dims.items():
            size = compaction.shapes[name][dim]
            for line in indices if indices and isinstance(indices[0], list) else [indices]:
                if not line or not all(type(i) is int and 0 <= i < size for i in line):
                    raise ValueError(f"indices of {name} along dimension {dim} are not all within 0 and {size - 1}")
    for path, values in compaction.attributes.items():
        module = model.get_submodule(path)
        for name, value in values.items():
            if not _smaller(vars(module).get(name), value):
                raise ValueError(f"{path}.{name} is no size that could become {value!r}")


def _smaller(old: Any, new: Any) -> bool:
    """Is this a size, or a shape, and the other one that it could have become?"""
    if type(old) is tuple and type(new) is tuple and old:  # one of several parts may be empty
        return len(old) == len(new) and all(
            type(n) is int and (n == 0 or _smaller(o, n)) for o, n in zip(old, new, strict=True)
        )
    return type(old) is int and type(new) is int and 1 <= new <= old


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
