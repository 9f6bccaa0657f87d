"""MNIST (LeCun) and Fashion-MNIST (Zalando), from the published idx files, packed or unpacked."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from synflow.errors import SynflowError

from .dataset import Dataset
from .integrity import missing, read, verify

__all__ = ["fashion_mnist", "mnist"]

# MD5 of the published content; packed files differ from mirror to mirror.
MNIST = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHION = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


def mnist(root: Path, check: bool = True) -> Dataset:
    """70,000 handwritten digits of 28 x 28 pixels."""
    return _idx("mnist", root, check, MNIST, "http://yann.lecun.com/exdb/mnist", (0.1307,), (0.3081,))


def fashion_mnist(root: Path, check: bool = True) -> Dataset:
    """70,000 pictures of clothes of 28 x 28 pixels in 10 classes."""
    page = "https://github.com/zalandoresearch/fashion-mnist"
    return _idx("fashion_mnist", root, check, FASHION, page, (0.2860,), (0.3530,))


def _idx(
    name: str, root: Path, check: bool, files: dict[str, str], page: str,
    mean: tuple[float, ...], std: tuple[float, ...],
) -> Dataset:  # fmt: skip
    # Both sets publish the same file names, so a folder of their own comes first.
    for folder in (root / name, root / name.replace("_", "-"), root / "raw", root):
        places = {file: _place(folder, file) for file in files}
        if all(places.values()):
            break
    else:
        expected = {f"{name}/{file}[.gz]": "the published file, packed or not" for file in files}
        raise missing(name, root, expected, page)
    parts = []
    for (file, md5), place in zip(files.items(), places.values(), strict=True):
        assert place is not None
        content = read(place, None)
        if place.suffix == ".gz":
            content = _unpacked(content, place)
        verify(content, place, md5 if check else None)
        parts.append(_tensor(content, place, 3 if "images" in file else 1))
    train, train_labels, test, test_labels = parts
    return Dataset(
        name, train.unsqueeze(1), train_labels.long(), test.unsqueeze(1), test_labels.long(), 10, mean, std, padding=2
    )


def _place(folder: Path, file: str) -> Path | None:
    # Some mirrors write a dot before idx.
    names = (file, f"{file}.gz", file.replace("-idx", ".idx"), f"{file.replace('-idx', '.idx')}.gz")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _unpacked(data: bytes, path: Path) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as cause:
        raise SynflowError(f"{path} cannot be unpacked: {cause}; fetch it again") from cause


def _tensor(data: bytes, path: Path, dimensions: int) -> Tensor:
    """An idx file: two zero bytes, the type (8: bytes), the number of dimensions, their sizes, then the values."""
    start = 4 + 4 * dimensions
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) < start:
        raise SynflowError(f"{path} is no idx file of bytes in {dimensions} dimensions; fetch it again")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    if math.prod(shape) != len(data) - start:
        raise SynflowError(
            f"{path}: {len(data) - start:,} values, expected {math.prod(shape):,} for shape {shape}; fetch it again"
        )
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).reshape(shape)
