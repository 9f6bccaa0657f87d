"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from the python or the binary release, unpacked or still packed."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from synflow.errors import SynflowError

from .dataset import Dataset
from .integrity import missing, read
from .unpickling import read_pickle

__all__ = ["cifar10", "cifar100"]

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32
Read = Callable[[str, "str | None"], bytes]


@dataclass(frozen=True)
class Release:
    """Where a release keeps its images; MD5 by file name as published (None: only sizes and labels are checked)."""

    folder: str
    archive: str
    archive_md5: str
    train: dict[str, str | None]
    test: dict[str, str | None]
    labels: str  # the key of a pickle, or how many bytes of labels stand before an image


CIFAR10 = (
    Release(
        "cifar-10-batches-py", "cifar-10-python.tar.gz", "c58f30108f718f92721af3d95e74349a",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f", "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751", "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        {"test_batch": "40351d587109b95175f43aff81a1287e"}, "labels",
    ),
    Release(
        "cifar-10-batches-bin", "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530",
        {f"data_batch_{number}.bin": None for number in range(1, 6)}, {"test_batch.bin": None}, "1",
    ),
)  # fmt: skip
CIFAR100 = (
    Release(
        "cifar-100-python", "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85",
        {"train": "16019d7e3df5f24257cddd939b257f8d"}, {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}, "fine_labels",
    ),
    Release(
        "cifar-100-binary", "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8",
        {"train.bin": None}, {"test.bin": None}, "2",
    ),
)  # fmt: skip


def cifar10(root: Path, check: bool = True) -> Dataset:
    """60,000 photographs in 10 classes."""
    return _cifar("cifar10", root, check, CIFAR10, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def cifar100(root: Path, check: bool = True) -> Dataset:
    """60,000 photographs in 100 classes."""
    return _cifar("cifar100", root, check, CIFAR100, 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def _cifar(
    name: str, root: Path, check: bool, releases: tuple[Release, ...], classes: int,
    mean: tuple[float, ...], std: tuple[float, ...],
) -> Dataset:  # fmt: skip
    for release in releases:
        reader = _opened(root, release, check)
        if reader is None:
            continue
        parts = []
        for files in (release.train, release.test):
            found = [_images(reader(file, md5 if check else None), file, release.labels) for file, md5 in files.items()]
            parts.append((torch.cat([images for images, _ in found]), torch.cat([labels for _, labels in found])))
        (train, train_labels), (test, test_labels) = parts
        data = Dataset(name, train, train_labels, test, test_labels, classes, mean, std, padding=4, flip=True)
        if check:
            _check_counts(data, release)
        return data
    expected = {}
    for release in releases:
        expected[release.folder] = f"the unpacked release, with {', '.join([*release.train, *release.test])}"
        expected[release.archive] = "the same, packed"
    raise missing(name, root, expected, PAGE)


def _opened(root: Path, release: Release, check: bool) -> Read | None:
    """A function that reads a file of the release, if the release is there."""
    for folder in (root / release.folder, root):
        if all((folder / file).is_file() for file in {**release.train, **release.test}):
            return lambda file, md5: read(folder / file, md5)
    archive = root / release.archive
    if archive.is_file():
        read(archive, release.archive_md5 if check else None)
        return lambda file, _: _member(archive, f"{release.folder}/{file}")
    return None


def _member(archive: Path, name: str) -> bytes:
    """One member, read into memory: nothing is unpacked to disk, so no path in the archive matters."""
    try:
        with tarfile.open(archive) as tar:
            file = tar.extractfile(name)
            if file is None:
                raise KeyError(name)
            return file.read()
    except (KeyError, OSError, tarfile.TarError) as cause:
        raise SynflowError(f"{archive}: no readable file {name} in it: {cause}; fetch it again") from cause


def _images(data: bytes, file: str, labels: str) -> tuple[Tensor, Tensor]:
    if labels.isdigit():
        record = int(labels) + PIXELS
        if not data or len(data) % record:
            raise SynflowError(f"{file}: {len(data):,} bytes, expected a multiple of {record:,}; fetch it again")
        rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, record)
        # CIFAR-100 has the coarse label first, then the fine one; it is the last byte before the pixels in both.
        found, pixels = rows[:, int(labels) - 1], rows[:, int(labels) :].contiguous()
    else:
        content = read_pickle(data, file)
        if labels not in content or not isinstance(content.get("data"), np.ndarray):
            raise SynflowError(f"{file}: no {labels!r} and 'data' in it but {', '.join(content)}; fetch it again")
        found, pixels = torch.tensor(content[labels]), torch.from_numpy(content["data"].copy())
        if pixels.dim() != 2 or pixels.shape[1] != PIXELS or len(found) != len(pixels):
            raise SynflowError(f"{file}: {tuple(pixels.shape)} pixels and {len(found)} labels do not fit together")
    return pixels.reshape(-1, 3, 32, 32), found.long()


def _check_counts(data: Dataset, release: Release) -> None:
    for part, labels, wanted in (("training", data.train_labels, 50_000), ("test", data.test_labels, 10_000)):
        counts = torch.bincount(labels, minlength=data.classes)
        if not bool((counts == wanted // data.classes).all()):
            raise SynflowError(
                f"{data.name}: {len(labels):,} {part} images, {int(counts.min())} to {int(counts.max())} per class; "
                f"published are {wanted:,}, {wanted // data.classes} per class: fetch {release.archive} again"
            )
