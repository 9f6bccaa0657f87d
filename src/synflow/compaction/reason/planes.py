"""Planes: boolean tensors, or floating ones of zeros and ones where autograd follows gradients through the rules.

A plane has the rank of the tensor that it describes, and size one along dimensions on which it does not depend.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["lit", "settled", "some"]


class _Sign(torch.autograd.Function):
    """Brings sums back to zeros and ones, values and gradients alike, so that neither overflows at any depth."""

    @staticmethod
    def forward(ctx: Any, plane: Tensor) -> Tensor:
        return (plane > 0).to(plane.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (gradient > 0).to(gradient.dtype)


def settled(plane: Tensor) -> Tensor:
    """Zeros and ones again, after sums and products."""
    if plane.requires_grad:
        settled: Tensor = _Sign.apply(plane)
        return settled
    return plane if plane.dtype == torch.bool else plane > 0


def some(plane: Tensor, dims: Iterable[int], keepdim: bool = False) -> Tensor:
    """Is there a one along these dimensions?"""
    places = tuple(dims)
    if not places:
        return plane
    if plane.requires_grad:
        return settled(plane.sum(places, keepdim=keepdim))
    return torch.any(plane, places, keepdim=keepdim) if len(places) > 1 else plane.any(places[0], keepdim=keepdim)


def lit(plane: Tensor) -> Tensor:
    """All ones, with the gradient of the plane."""
    if plane.requires_grad:
        return plane + (1 - plane).detach()
    return torch.ones_like(plane)
