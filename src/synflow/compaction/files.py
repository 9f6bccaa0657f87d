"""A compact network on disk: a folder of `weights.safetensors`, `masks.safetensors`, a readable `compaction.json`, and
`manifest.json` with their checksums.

No code is stored: the dense model is built by its own class, cut by the record, and given the weights.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save
from torch import nn

from ..errors import SynflowError
from ..masks.attach import attach, bake
from ..masks.files import load_masks, save_masks
from ..support import folders
from ..support.atomic_files import check_path
from ..support.json_files import read_json
from ..support.tensor_files import read_tensors
from .cut.surgery import Kept, shrink
from .record.tape import tensors
from .result import Compaction, Stayed, compaction_of

Model = TypeVar("Model", bound=nn.Module)
FORMAT = 1
_RECORD, _WEIGHTS, _MASKS = FILES = ("compaction.json", "weights.safetensors", "masks.safetensors")


def save_compact(small: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a compact network to a folder, all of it or nothing.

    An older one there is replaced; other files in the folder stay.

    >>> import tempfile
    >>> from synflow.compaction import compact
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> small = compact(model, torch.ones(1, 3), {"2.weight": torch.tensor([[True, False, False, True]] * 2)})
    >>> folder = Path(tempfile.mkdtemp(), "small")
    >>> save_compact(small, folder)
    >>> load_compact(model, folder)[0]
    Linear(in_features=3, out_features=2, bias=True)
    """
    check_path(folder, "a folder")
    folder = Path(folder)
    compaction = compaction_of(small)
    if not folders.is_free(folder) and not (folder / _RECORD).is_file():
        raise SynflowError(f"{folder} is there already and holds no compact network; choose another folder")
    plain = copy.deepcopy(small)
    masks = bake(plain)
    sums: dict[str, str] = {}  # versions before the manifest look for checksums in the record
    about = {"format": FORMAT, "model": type(small).__qualname__, "training": small.training, "sha256": sums}
    about["compaction"] = dataclasses.asdict(compaction)

    def summed(name: str, write: folders.Writer, path: Path) -> None:
        write(path)
        sums[name] = folders.digest(path)

    writers: dict[str, folders.Writer] = {}
    writers[_WEIGHTS] = partial(summed, _WEIGHTS, lambda path: path.write_bytes(packed(plain)))
    if masks:
        writers[_MASKS] = partial(summed, _MASKS, partial(save_masks, masks))
    writers[_RECORD] = lambda path: path.write_text(json.dumps(about, indent=1) + "\n")  # last: sums are known
    folders.write(folder, writers, OURS)


def packed(model: nn.Module) -> bytes:
    """A safetensors file of parameters and buffers; a tied tensor is in it once, under its first name."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors(model).items()})


def _is_ours(path: Path) -> bool:
    """Did an earlier version, which wrote no manifest, write this file? The record lists the others by checksum."""
    try:
        about = read_json(path.with_name(_RECORD))
    except SynflowError:
        return False
    sums = about.get("sha256")
    if about.get("format") != FORMAT or not isinstance(sums, dict) or not isinstance(about.get("compaction"), dict):
        return False
    return path.name == _RECORD or sums.get(path.name) == folders.digest(path)


OURS: folders.Ours = dict.fromkeys(FILES, _is_ours)


def load_compact(dense_model: Model, folder: str | os.PathLike[str]) -> Model:
    """The compact network of a folder, from a dense model of the same kind (a fresh one; it is not changed)."""
    check_path(folder, "a folder of a compact network")
    folder = Path(folder)
    about = _read(folder)
    small = copy.deepcopy(dense_model)
    bake(small)
    try:
        compaction = _record(about["compaction"])
        training = bool(about["training"])
        _check_shapes(compaction.shapes, small, folder)
        _check_indices(compaction.kept, compaction.shapes)
        _check_attributes(compaction, small)
    except SynflowError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as cause:
        raise SynflowError(f"{folder / _RECORD} is damaged: {type(cause).__name__}: {cause}") from cause
    shrink(small, compaction.kept, compaction.attributes)
    _fill(small, folder)
    if _MASKS in about["sha256"]:
        attach(small, load_masks(folder / _MASKS, small))
    small.train(training)
    object.__setattr__(small, "compaction", compaction)
    return small


def _fill(small: nn.Module, folder: Path) -> None:
    """Copy the stored weights into a model of their shapes."""
    weights, own = read_tensors(folder / _WEIGHTS), tensors(small)
    if odd := weights.keys() ^ own.keys():
        raise SynflowError(f"{folder}: {min(odd)} is in only one of the saved network and {type(small).__name__}")
    with torch.no_grad():
        for name, tensor in own.items():
            if tensor.shape != weights[name].shape:
                raise SynflowError(
                    f"{folder}: {name} is {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}; "
                    "pass the dense model that was compacted"
                )
            tensor.copy_(weights[name])


def _read(folder: Path) -> dict[str, Any]:
    """The record, after a check that its files are there and undamaged."""
    path = folder / _RECORD
    folders.settle(folder, FILES)
    if not path.is_file():
        raise SynflowError(f"{folder} holds no compact network ({_RECORD} is missing); write one with save_compact")
    about = read_json(path, FORMAT)
    files = about.get("sha256")
    if not isinstance(files, dict) or _WEIGHTS not in files:
        raise SynflowError(f"{path} is damaged: it does not list {_WEIGHTS}")
    for name, digest in files.items():
        if name not in (_WEIGHTS, _MASKS):  # a record from elsewhere must not lead to other files
            raise SynflowError(f"{path} is damaged: it speaks of a file {name!r}")
        if not (folder / name).is_file():
            raise SynflowError(f"{folder}: {name} is missing")
        if folders.digest(folder / name) != digest:
            raise SynflowError(f"{folder / name} is damaged or does not belong to {_RECORD}: its checksum differs")
    folders.check(folder, (_RECORD, *files), FILES)
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


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], model: nn.Module, folder: Path) -> None:
    dense = {name: tuple(tensor.shape) for name, tensor in tensors(model).items()}
    for name, shape in shapes.items():
        if dense.get(name) != shape:
            found = f"has shape {dense[name]}" if name in dense else "is not there"
            raise SynflowError(
                f"{folder}: in the given {type(model).__name__} {name} {found}, expected {shape}; "
                "pass the dense model that was compacted"
            )


def _check_indices(kept: Kept, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse indices of a record from elsewhere that are not ascending, or outside of the tensor."""
    for name, dims in kept.items():
        for dim, indices in dims.items():
            size = shapes[name][dim]
            ragged = bool(indices) and isinstance(indices[0], list)
            lines: list[Any] = list(indices) if ragged else [indices]
            rows = len(dims[0]) if 0 in dims else shapes[name][0]
            if ragged and (dim == 0 or rows % len(lines) or len({len(line) for line in lines}) > 1):
                raise ValueError(f"indices of {name} along dimension {dim} do not fit its groups")
            for line in lines:
                if not line or not all(type(i) is int and 0 <= i < size for i in line):
                    raise ValueError(f"indices of {name} along dimension {dim} are not all within 0 and {size - 1}")
                if any(a >= b for a, b in itertools.pairwise(line)):
                    raise ValueError(f"indices of {name} along dimension {dim} are not in ascending order")


def _check_attributes(compaction: Compaction, model: nn.Module) -> None:
    """Refuse a record from elsewhere that changes anything but sizes that modules remember."""
    for path, values in compaction.attributes.items():
        module = model.get_submodule(path)
        for name, value in values.items():
            if not _smaller(vars(module).get(name), value):
                raise ValueError(f"{path}.{name} is no size that could become {value!r}")


def _smaller(old: Any, new: Any) -> bool:
    """Whether the old value is a size, or a tuple of sizes, and the new one is no larger."""
    if type(old) is tuple and type(new) is tuple and old:  # one of several parts may be empty
        return len(old) == len(new) and all(
            type(n) is int and (n == 0 or _smaller(o, n)) for o, n in zip(old, new, strict=True)
        )
    return type(old) is int and type(new) is int and 1 <= new <= old
