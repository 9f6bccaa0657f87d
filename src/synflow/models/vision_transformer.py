"""A small vision transformer (Dosovitskiy et al. 2021): norms come first, and the mean over patches is classified."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Shape, image, scaled, sequence


class SelfAttention(nn.Module):
    """Attention of all patches to all, its queries, keys and values in one layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, patches, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, patches, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, patches, -1)
        found: Tensor = self.projection(mixed)
        return found


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), then the same with two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        changed: Tensor = self.mlp(self.norm2(x))
        return x + changed


class Patches(nn.Module):
    """Square patches of an image as vectors, each with its place."""

    def __init__(self, channels: int, shape: Shape, side: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(channels, width, side, side)
        self.places = nn.Parameter(torch.randn(1, (shape[0] // side) * (shape[1] // side), width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        vectors: Tensor = self.cut(x).flatten(2).transpose(1, 2)
        return vectors + self.places


class MeanOverPatches(nn.Module):
    """One vector for an image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def vision_transformer(
    classes: int, input_shape: Shape, width: float = 1.0, depth: int = 6, patch: int = 4
) -> nn.Module:
    """A network of so many blocks, 128 wide with four heads, times `width`."""
    channels, _ = image(input_shape, side=patch)
    heads = 4
    inner = heads * scaled(128 // heads, width)
    return sequence(
        patches=Patches(channels, input_shape[1:], patch, inner),
        blocks=nn.Sequential(*(TransformerBlock(inner, heads) for _ in range(depth))),
        norm=nn.LayerNorm(inner),
        pool=MeanOverPatches(),
        classifier=nn.Linear(inner, classes),
    )
