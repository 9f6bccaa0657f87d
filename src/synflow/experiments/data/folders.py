"""Tiny ImageNet and ImageNet: a folder of JPEG files for each class."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synflow.errors import SynflowError, need

from .dataset import Dataset
from .integrity import missing

__all__ = ["imagenet", "tiny_imagenet"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = (".jpeg", ".jpg", ".png")
MEMORY = 64 * 2**30  # bytes of images above which a subset has to be asked for
Files = list[tuple[Path, int]]


def tiny_imagenet(root: Path, check: bool = True, per_class: int | None = None) -> Dataset:
    """100,000 photographs of 64 x 64 pixels in 200 classes; the published validation images test."""
    home = next((f for f in (root / "tiny-imagenet-200", root) if (f / "wnids.txt").is_file()), None)
    if home is None:
        expected = {"tiny-imagenet-200": "the unpacked release, with wnids.txt, train/ and val/val_annotations.txt"}
        raise missing("tiny-imagenet", root, expected, "http://cs231n.stanford.edu/tiny-imagenet-200.zip")
    classes = {wnid: label for label, wnid in enumerate((home / "wnids.txt").read_text().split())}
    train = _listed({home / "train" / wnid / "images": label for wnid, label in classes.items()}, per_class)
    test: Files = []
    for line in (home / "val" / "val_annotations.txt").read_text().splitlines():
        name, wnid = line.split("\t")[:2]
        if wnid not in classes or Path(name).name != name:
            raise SynflowError(f"{home}/val/val_annotations.txt: {line[:60]!r} names no class of wnids.txt")
        test.append((home / "val" / "images" / name, classes[wnid]))
    notes = []
    if check and (len(classes), len(train), len(test)) != (200, 100_000, 10_000) and per_class is None:
        notes.append(f"a part of the published set: {len(classes)} of 200 classes, {len(train):,} of 100,000 images")
    read = partial(_decoded, side=64, crop=64)
    return Dataset(
        "tiny-imagenet", *_loaded(train, read, 64), *_loaded(test, read, 64), len(classes), MEAN, STD,
        padding=4, flip=True, notes=tuple(notes),
    )  # fmt: skip


def imagenet(root: Path, check: bool = True, per_class: int | None = None) -> Dataset:
    """1.28 million photographs in 1000 classes, cut to 224 x 224 pixels; give `per_class` to fit them into memory.

    Images already of that size are taken as they are. Without a `train` folder the validation images stand in for
    training images, which is enough to score a network at initialisation.
    """
    homes = (root, root / "ILSVRC2012", root / "imagenet")
    home = next((f for f in homes if (f / "train").is_dir() or (f / "val").is_dir()), None)
    if home is None:
        expected = {"train": "a folder per class (n01440764, ...) of JPEG files", "val": "the same"}
        raise missing("imagenet", root, expected, "https://www.image-net.org/download.php")
    notes: list[str] = []
    parts: list[Files] = []
    wnids: list[str] = []
    for part in ("train", "val"):
        folder = home / part
        found = sorted(f.name for f in folder.iterdir() if f.is_dir()) if folder.is_dir() else []
        wnids = wnids or found
        if found and found != wnids:
            raise SynflowError(f"{folder}: {len(found)} classes, but {len(wnids)} in train; each class needs a folder")
        parts.append(_listed({folder / wnid: label for label, wnid in enumerate(found)}, per_class))
    train, test = parts
    if not train:
        train, notes = test, ["validation images stand in for training images"]
    if check and len(wnids) != 1000:
        notes.append(f"{len(wnids)} of 1000 classes")
    notes.append(f"{len(train):,} images")
    read = partial(_decoded, side=256, crop=224)
    images, labels = _loaded(train, read, 224)
    tests = (images, labels) if test is train else _loaded(test, read, 224)
    return Dataset("imagenet", images, labels, *tests, len(wnids), MEAN, STD, flip=True, notes=tuple(notes))


def _listed(folders: dict[Path, int], per_class: int | None) -> Files:
    """The images in each folder with its label, a fixed random choice of them on request."""
    files: Files = []
    for folder, label in folders.items():
        if not folder.is_dir():
            raise SynflowError(f"{folder} is missing: each class needs its folder; unpack the data set again")
        found = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        if per_class is not None:
            if len(found) < per_class:
                raise SynflowError(f"{folder} has {len(found)} images, {per_class} per class were asked for")
            found = sorted(random.Random(0).sample(found, per_class))
        files += [(file, label) for file in found]
    return files


def _loaded(files: Sequence[tuple[Path, int]], read: Any, side: int) -> tuple[Tensor, Tensor]:
    size = len(files) * 3 * side * side
    if size > MEMORY:
        raise SynflowError(
            f"{len(files):,} images of {side} x {side} pixels take {size / 2**30:.0f} GB of memory; "
            "ask for a subset: per_class=10 is what the paper scores with"
        )
    images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    for place, (file, _) in enumerate(files):
        images[place] = read(file)
    return images, torch.tensor([label for _, label in files], dtype=torch.long)


def _decoded(path: Path, side: int, crop: int) -> Tensor:
    """An image with its shorter side made `side` long and its middle cut out; grey ones get three equal channels."""
    pillow = need("PIL.Image", extra="experiments")
    try:
        with pillow.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as cause:
        raise SynflowError(f"{path} is no image, or it is damaged: {cause}") from cause
    if image.size != (crop, crop):
        scale = side / min(image.size)
        width, height = (max(crop, round(length * scale)) for length in image.size)
        left, top = (width - crop) // 2, (height - crop) // 2
        image = image.resize((width, height), pillow.Resampling.BILINEAR).crop((left, top, left + crop, top + crop))
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.reshape(crop, crop, 3).permute(2, 0, 1)
