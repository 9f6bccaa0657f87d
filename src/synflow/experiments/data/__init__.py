"""Data sets, read from their published files into memory, without torchvision and without unpickling.

`load` finds a data set by name; `digits` needs no files. `augmentation` makes training batches of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from synflow.errors import SynflowError, named

from .augmentation import augment, batches, normalise, scoring_batches
from .cifar import cifar10, cifar100
from .dataset import Dataset, balanced, subset
from .digits import digits, digits32
from .folders import imagenet, tiny_imagenet
from .idx import fashion_mnist, mnist

__all__ = [
    "DATASETS", "FOLDERS", "SHAPES", "SIZES", "Dataset", "augment", "balanced", "batches", "folder_for", "load",
    "normalise", "scoring_batches", "subset",
]  # fmt: skip

FOLDERS: dict[str, Callable[..., Dataset]] = {"tiny-imagenet": tiny_imagenet, "imagenet": imagenet}
FILES: dict[str, Callable[..., Dataset]] = {
    "cifar10": cifar10, "cifar100": cifar100, "mnist": mnist, "fashion_mnist": fashion_mnist,
}  # fmt: skip
BUNDLED: dict[str, Callable[[], Dataset]] = {"digits": digits, "digits32": digits32}
DATASETS: dict[str, Callable[..., Dataset]] = {**BUNDLED, **FILES, **FOLDERS}

# Classes and image shape by name, for everything that needs a network but no images.
SHAPES: dict[str, tuple[int, tuple[int, int, int]]] = {
    "digits": (10, (1, 8, 8)), "digits32": (10, (1, 32, 32)), "mnist": (10, (1, 28, 28)),
    "fashion_mnist": (10, (1, 28, 28)), "cifar10": (10, (3, 32, 32)), "cifar100": (100, (3, 32, 32)),
    "tiny-imagenet": (200, (3, 64, 64)), "imagenet": (1000, (3, 224, 224)),
}  # fmt: skip
# Training and test images by name.
SIZES: dict[str, tuple[int, int]] = {
    "digits": (1437, 360), "digits32": (1437, 360), "mnist": (60_000, 10_000), "fashion_mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "tiny-imagenet": (100_000, 10_000),
    "imagenet": (1_281_167, 50_000),
}  # fmt: skip


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    train_per_class: int | None = None,
    test_per_class: int | None = None,
    check: bool = True,
) -> Dataset:
    """A data set by name, from the folder that holds its published files; `check` compares them with their checksums.

    >>> data = load("digits", train_per_class=10)
    >>> data.train_images.shape, data.classes
    (torch.Size([100, 1, 8, 8]), 10)
    """
    named("data set", name, DATASETS)
    reader = DATASETS[name]
    folder = folder_for(name, root)
    if folder is None:
        data: Dataset = reader()
        return subset(data, train_per_class, test_per_class)
    if name in FOLDERS:
        # Decoding all images first would take long: these readers choose files before they open them.
        data = reader(folder, check=check, per_class=train_per_class)
        return subset(data, None, test_per_class) if name != "imagenet" else data
    return subset(reader(folder, check=check), train_per_class, test_per_class)


def folder_for(name: str, root: str | os.PathLike[str] | None) -> Path | None:
    """The folder that a data set is read from, checked; None for those that need none."""
    if name in BUNDLED:
        return None
    if root is None:
        raise SynflowError(
            f"{name} is read from its published files: name the folder that holds them (data_dir=..., --data-dir); "
            "the bundled 'digits' needs none"
        )
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise SynflowError(f"{folder} is no folder; name the one that holds the files of {name}")
    return folder
