"""Random crops and mirror images of whole batches of bytes, from a seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .dataset import Dataset

__all__ = ["augment", "batches", "normalise", "scoring_batches"]


def augment(images: Tensor, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each image by up to `padding` pixels over a black border and mirror half of them.

    >>> images = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
    >>> augment(images, 1, True, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 4, 4])
    """
    number, _, height, width = images.shape
    if padding:
        places = torch.randint(0, 2 * padding + 1, (2, number), generator=generator)
        windows = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        images = windows[torch.arange(number), :, places[0], places[1]]
    if flip:
        mirrored = torch.rand(number, generator=generator) < 0.5
        images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
    return images


def normalise(images: Tensor, data: Dataset, device: torch.device | str = "cpu") -> Tensor:
    """Bytes to numbers of mean zero and deviation one per channel."""
    mean = torch.tensor(data.mean, device=device).view(1, -1, 1, 1) * 255
    scale = 1 / (torch.tensor(data.std, device=device).view(1, -1, 1, 1) * 255)
    return images.to(device).float().sub_(mean).mul_(scale)


def batches(
    data: Dataset, size: int, seed: int, epoch: int, *, augmented: bool = True, device: torch.device | str = "cpu"
) -> Iterator[tuple[Tensor, Tensor]]:
    """The training batches of an epoch: a function of seed and epoch alone, so that a resumed run sees the same ones.

    The last batch is smaller when the size does not divide the number of images; a last batch of one image, which
    batch norm could not use, joins the one before.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(data.train_labels), generator=generator)
    parts = list(order.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    for places in parts:
        images = data.train_images[places]
        if augmented:
            images = augment(images, data.padding, data.flip, generator)
        yield normalise(images, data, device), data.train_labels[places].to(device)


def scoring_batches(
    data: Dataset, number: int, size: int = 256, seed: int = 0, device: torch.device | str = "cpu"
) -> list[tuple[Tensor, Tensor]]:
    """`number` training images for the scores that need data, as they are, in batches."""
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(seed))[:number]
    return [
        (normalise(data.train_images[places], data, device), data.train_labels[places].to(device))
        for places in order.split(size)
    ]
