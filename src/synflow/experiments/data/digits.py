"""Handwritten digits that come with scikit-learn: real data that needs no download."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

from synflow.errors import need

from .dataset import Dataset, balanced

__all__ = ["digits", "digits32"]

TEST_PER_CLASS = 36  # of about 180


@cache
def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, 36 of each class for testing."""
    found = need("sklearn.datasets", extra="experiments").load_digits()
    images = torch.from_numpy(found.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(found.target).long()
    testing = torch.zeros(len(labels), dtype=torch.bool)
    testing[balanced(labels, TEST_PER_CLASS)] = True
    pixels = images[~testing].float() / 255
    return Dataset(
        "digits", images[~testing], labels[~testing], images[testing], labels[testing], 10,
        (round(float(pixels.mean()), 4),), (round(float(pixels.std()), 4),), padding=1,
    )  # fmt: skip


@cache
def digits32() -> Dataset:
    """The same digits, enlarged to 32 x 32 pixels for the networks of CIFAR."""
    small = digits()
    train, test = (
        F.interpolate(images.float(), size=32, mode="bilinear", align_corners=False).round().to(torch.uint8)
        for images in (small.train_images, small.test_images)
    )
    return Dataset(
        "digits32", train, small.train_labels, test, small.test_labels, 10, small.mean, small.std, padding=4
    )  # fmt: skip
