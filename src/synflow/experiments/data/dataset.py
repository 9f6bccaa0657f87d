"""A data set in memory: images as bytes, labels, and what normalises them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from synflow.errors import SynflowError

__all__ = ["Dataset", "balanced", "subset"]


@dataclass(frozen=True)
class Dataset:
    """Images of shape (n, channels, height, width) in uint8 and their labels in int64, for training and for testing.

    `mean` and `std` of each channel, of pixels from 0 to 1, normalise them. `padding` and `flip` are the usual
    augmentation for this data; `notes` say what was left out or could not be checked.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 0
    flip: bool = False
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("train", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if images.dtype != torch.uint8 or images.dim() != 4 or len(images) != len(labels):
                raise SynflowError(
                    f"{self.name}: {part} images must be uint8 of shape (n, channels, height, width) with one label "
                    f"each, got {images.dtype} {tuple(images.shape)} and {len(labels)} labels"
                )
            if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
                raise SynflowError(
                    f"{self.name}: {part} labels must lie in 0..{self.classes - 1}, "
                    f"got {int(labels.min())}..{int(labels.max())}; the files are damaged or of another data set"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train_images.shape[1:]
        return int(channels), int(height), int(width)


def balanced(labels: Tensor, per_class: int, seed: int = 0) -> Tensor:
    """Positions of `per_class` examples of each class, chosen by the seed, in their original order.

    >>> balanced(torch.tensor([1, 0, 1, 0, 1]), 2).tolist() in ([0, 1, 2, 3], [0, 1, 3, 4], [1, 2, 3, 4])
    True
    """
    if per_class < 1:
        raise SynflowError(f"a subset needs at least 1 example per class, got {per_class}")
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for label in labels.unique().tolist():
        places = torch.nonzero(labels == label).flatten()
        if len(places) < per_class:
            raise SynflowError(f"class {label} has {len(places)} examples, {per_class} per class were asked for")
        chosen.append(places[torch.randperm(len(places), generator=generator)[:per_class]])
    return torch.cat(chosen).sort().values


def subset(data: Dataset, train_per_class: int | None = None, test_per_class: int | None = None) -> Dataset:
    """The same data set with at most this many examples per class; the choice is deterministic.

    Fewer of the test examples make a noisier estimate of accuracy, nothing else.
    """
    changes: dict[str, Any] = {}
    notes = list(data.notes)
    for part, per_class in (("train", train_per_class), ("test", test_per_class)):
        if per_class is None:
            continue
        images, labels = getattr(data, f"{part}_images"), getattr(data, f"{part}_labels")
        places = balanced(labels, per_class)
        changes |= {f"{part}_images": images[places], f"{part}_labels": labels[places]}
        notes.append(f"{per_class} {part} images per class, {len(places)} of {len(labels)}")
    return dataclasses.replace(data, **changes, notes=tuple(notes))
