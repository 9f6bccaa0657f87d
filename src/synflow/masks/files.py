"""Masks in files: one bit per weight, with the facts needed to verify them.

A file is a safetensors file: the tensors are bit-packed masks, the metadata describe their origin. Equal masks give
equal files. Loading encodes the contents again and refuses a file that differs in any bit. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor, nn

from .._version import __version__
from ..errors import SynflowError
from ..support.atomic_files import check_path, write_bytes
from .attach import fingerprint, fingerprint_of
from .checks import check_boolean, check_mapping, check_masks, named_weights
from .results import Masks

FORMAT, VERSION = "synflow masks", 1
MOST_DIMENSIONS = 64  # the most dimensions of a tensor in torch
Packed = dict[str, bytes]
_deserialize: Any = safetensors.deserialize


def save_masks(masks: Mapping[str, Tensor], path: str | os.PathLike[str], **about: str | int | float | None) -> None:
    """Write masks to a file, one bit per weight, with their settings; an old file is replaced atomically.

    The settings of `prune` (method, compression, seed, architecture) are stored automatically; keywords add more.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "masks.safetensors")
    >>> save_masks({"weight": torch.tensor([[True, False]])}, path, method="by hand")
    >>> masks = load_masks(path, nn.Linear(2, 1, bias=False))
    >>> masks, masks.about["method"]
    ({'weight': tensor([[ True, False]])}, 'by hand')
    """
    check_mapping(masks)
    check_path(path, "a file of masks")
    known = {**getattr(masks, "about", {}), **about}
    for key, value in known.items():
        if not _storable(value):
            raise SynflowError(
                f"about {key!r}: only text and finite numbers can be saved; got a {type(value).__name__}"
            )
    packed = {name: _packed(name, mask) for name, mask in masks.items()}
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    of_model = known.pop("fingerprint", None)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "synflow": __version__,
        "about": _text(known),
        "shapes": _text(shapes),
        "fingerprint": str(of_model or fingerprint_of(shapes)),
        "fingerprint of": "model" if of_model else "masks",
    }
    write_bytes(path, _encoded(packed, {**metadata, "checksum": _checksum(packed, metadata)}))


def load_masks(path: str | os.PathLike[str], model: nn.Module | None = None) -> Masks:
    """Read masks; check that the file is undamaged and, given a model, that the masks fit its architecture.

    With a model, each mask is on the device of its weight. `about` of the result holds the settings in the file.
    """
    check_path(path, "a file of masks")
    path = Path(path)
    packed, metadata = _decoded(path)
    with _or_corrupt(path):
        shapes, about = json.loads(metadata["shapes"]), json.loads(metadata["about"])
        _require(isinstance(about, dict) and all(map(_storable, about.values())), "what it says of itself is no text")
        masks = {name: _unpacked(packed[name], shape) for name, shape in shapes.items()}
        if metadata["fingerprint of"] == "model":
            about["fingerprint"] = metadata["fingerprint"]
        loaded = Masks(masks, about)
        _require(list(masks) == list(packed), "its list of shapes does not match the masks in it")
    if model is None:
        return loaded
    try:
        check_masks(masks, model)
    except SynflowError as cause:
        raise SynflowError(f"{path}: {cause}") from cause
    if "fingerprint" in about and about["fingerprint"] != fingerprint(model):
        raise SynflowError(
            f"{path}: every mask fits a weight, but the masks were made for another architecture (layers without mask "
            "differ); if that is meant, attach(model, load_masks(path))"
        )
    weights = named_weights(model)
    loaded.update({name: mask.to(weights[name].device) for name, mask in masks.items()})
    return loaded


def _storable(value: object) -> bool:
    return isinstance(value, str | None) or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)


def _packed(name: str, mask: Tensor) -> bytes:
    check_boolean(name, mask)
    if mask.is_meta:
        raise SynflowError(f"{name}: the mask is on the meta device and has no values to save")
    return np.packbits(mask.detach().cpu().numpy().ravel(), bitorder="little").tobytes()


def _unpacked(data: bytes, shape: list[int]) -> Tensor:
    _require(all(type(size) is int and 0 <= size < 2**63 for size in shape), "a shape is not a list of sizes")
    _require(len(shape) <= MOST_DIMENSIONS, "a shape has too many dimensions")
    numel = math.prod(shape)
    _require(len(data) == -(-numel // 8), "the size of a mask does not match its shape")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    _require(not bits[numel:].any(), "there is something behind the last weight of a mask")
    return torch.from_numpy(bits[:numel].astype(bool)).reshape(shape)


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _checksum(packed: Packed, metadata: Mapping[str, str]) -> str:
    digests = [[name, hashlib.sha256(data).hexdigest()] for name, data in packed.items()]
    return hashlib.sha256(_text([metadata, digests]).encode()).hexdigest()


def _encoded(packed: Packed, metadata: Mapping[str, str]) -> bytes:
    """The bytes of the file, in one canonical form where safetensors allows several (order, spaces, padding)."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, data in packed.items():
        if not isinstance(name, str) or name in header or not name.isprintable() or not name:
            raise SynflowError(f"{name!r} cannot be the name of a mask; use the names of model.named_parameters()")
        start, end = end, end + len(data)
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [start, end]}
    text = _text(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(packed.values())


def _decoded(path: Path) -> tuple[Packed, dict[str, str]]:
    """The contents of a file, after checking that it is a file of masks and undamaged."""
    try:
        if not path.is_file():
            raise SynflowError(f"{path}: there is no such file")
        data = path.read_bytes()
        tensors = dict(_deserialize(data))
    except OSError as cause:
        raise SynflowError(f"{path} cannot be read: {cause}") from cause
    except safetensors.SafetensorError as cause:
        raise SynflowError(f"{path} is no safetensors file, or it is damaged: {cause}") from cause
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata: dict[str, str] = header.pop("__metadata__", None) or {}
    if metadata.get("format") != FORMAT:
        raise SynflowError(f"{path} is a safetensors file, but not one of masks; masks are written by save_masks")
    if metadata.get("version") != str(VERSION):
        got = metadata.get("version")
        raise SynflowError(f"{path} has format {got!r}, synflow {__version__} reads format {VERSION}; upgrade synflow")
    with _or_corrupt(path):
        packed = {name: bytes(tensors[name]["data"]) for name in header}
        claimed = metadata["checksum"]
        rest = {key: value for key, value in metadata.items() if key != "checksum"}
        _require(claimed == _checksum(packed, rest), "its contents do not match its checksum")
        _require(_encoded(packed, metadata) == data, "it was changed after it was written")
    return packed, metadata


@contextmanager
def _or_corrupt(path: Path) -> Iterator[None]:
    """Turn any error inside the block into one that names the file, since its contents caused it."""
    try:
        yield
    except Exception as cause:
        raise SynflowError(f"{path} is damaged: {cause}; nothing was loaded, write it anew") from cause


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise SynflowError(otherwise)
