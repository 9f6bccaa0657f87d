"""Batch norm, addition, ReLU and 2x2 max pooling in as few passes over memory as possible, compiled by numba.

Tensors are groups of images: (groups, channels, height, width, images of a group), so that a channel of a group is one
contiguous line and every loop runs over neighbouring numbers.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["gradient", "gradient_pooled", "moments", "normalise", "normalise_pooled", "sums", "sums_pooled"]

# Numbers that are summed in float32 before the sum is added to a float64 total: bounds the rounding error of sums.
FLUSH = 4096
# Sums may be taken in any order and products contracted; not-a-number and infinity keep their meaning.
SUMS = {"contract", "reassoc", "nsz"}

Array = Any


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def moments(z: Array, origin: Array, first: Array, second: Array) -> None:
    """Per channel the sum of `z - origin` and of its square, added to `first` and `second`."""
    for group in range(z.shape[0]):
        for c in range(z.shape[1]):
            for start in range(0, z.shape[2], FLUSH):
                line, about = z[group, c, start : start + FLUSH], origin[c]
                one, two = np.float32(0), np.float32(0)
                for j in range(len(line)):
                    distance = line[j] - about
                    one += distance
                    two += distance * distance
                first[c] += one
                second[c] += two


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def normalise(z: Array, scale: Array, shift: Array, other: Array, y: Array, relu: bool) -> None:
    """Write `scale * z + shift` to y, plus `other` unless it is empty, and its positive part with `relu`."""
    floor = np.float32(0) if relu else np.float32(-np.inf)
    for group in range(z.shape[0]):
        for c in range(z.shape[1]):
            line, out, k, t = z[group, c], y[group, c], scale[c], shift[c]
            if other.shape[2]:
                added = other[group, c]
                for j in range(len(line)):
                    out[j] = max(line[j] * k + t + added[j], floor)
            else:
                for j in range(len(line)):
                    out[j] = max(line[j] * k + t, floor)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def sums(z: Array, slope: Array, mean: Array, scale: Array, shift: Array, mode: int, y: Array, kept: Array,
         first: Array, second: Array) -> None:  # fmt: skip
    """Per channel the sum of the gradient g, and of g * (z - mean), added to `first` and `second`.

    g is `slope` for mode 0; where `scale * z + shift` is positive, else 0, for mode 1; where y is positive for mode 2,
    in which case it is written to `kept` as well.
    """
    zero = np.float32(0)
    for group in range(z.shape[0]):
        for c in range(z.shape[1]):
            m, k, t = mean[c], scale[c], shift[c]
            for start in range(0, z.shape[2], FLUSH):
                line, grads = z[group, c, start : start + FLUSH], slope[group, c, start : start + FLUSH]
                one, two = zero, zero
                if mode == 0:
                    for j in range(len(line)):
                        one += grads[j]
                        two += grads[j] * (line[j] - m)
                elif mode == 1:
                    for j in range(len(line)):
                        g = grads[j] if line[j] * k + t > zero else zero
                        one += g
                        two += g * (line[j] - m)
                else:
                    out, keep = y[group, c, start : start + FLUSH], kept[group, c, start : start + FLUSH]
                    for j in range(len(line)):
                        keep[j] = grads[j] if out[j] > zero else zero
                    for j in range(len(line)):
                        one += keep[j]
                        two += keep[j] * (line[j] - m)
                first[c] += one
                second[c] += two


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def gradient(z: Array, slope: Array, mean: Array, scale: Array, shift: Array, relu: bool, constant: Array,
             factor: Array, dz: Array) -> None:  # fmt: skip
    """Write `scale * g + constant + factor * (z - mean)` to dz; with `relu` g is 0 where the output was 0."""
    zero = np.float32(0)
    for group in range(z.shape[0]):
        for c in range(z.shape[1]):
            line, grads, out = z[group, c], slope[group, c], dz[group, c]
            k, t, f = scale[c], shift[c], factor[c]
            base = constant[c] - f * mean[c]
            if relu:
                for j in range(len(line)):
                    g = grads[j] if line[j] * k + t > zero else zero
                    out[j] = k * g + base + f * line[j]
            else:
                for j in range(len(line)):
                    out[j] = k * grads[j] + base + f * line[j]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def normalise_pooled(z: Array, scale: Array, shift: Array, y: Array) -> None:
    """Write the positive part of the largest `scale * z + shift` of each 2x2 window to y."""
    zero = np.float32(0)
    for group in range(y.shape[0]):
        for c in range(y.shape[1]):
            k, t = scale[c], shift[c]
            for h in range(y.shape[2]):
                for w in range(y.shape[3]):
                    a, b = z[group, c, 2 * h, 2 * w], z[group, c, 2 * h, 2 * w + 1]
                    d, e = z[group, c, 2 * h + 1, 2 * w], z[group, c, 2 * h + 1, 2 * w + 1]
                    out = y[group, c, h, w]
                    for j in range(len(out)):
                        top = max(max(a[j] * k + t, b[j] * k + t), max(d[j] * k + t, e[j] * k + t))
                        out[j] = max(top, zero)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def sums_pooled(z: Array, slope: Array, mean: Array, scale: Array, shift: Array, first: Array, second: Array) -> None:
    """As `sums`; the gradient of a window goes to its largest entry, the first of equal ones."""
    zero, wide = np.float32(0), slope.shape[4]
    one, two = np.zeros(wide, np.float32), np.zeros(wide, np.float32)
    for group in range(slope.shape[0]):
        for c in range(slope.shape[1]):
            k, t, m = scale[c], shift[c], mean[c]
            for h in range(slope.shape[2]):
                for w in range(slope.shape[3]):
                    a, b = z[group, c, 2 * h, 2 * w], z[group, c, 2 * h, 2 * w + 1]
                    d, e = z[group, c, 2 * h + 1, 2 * w], z[group, c, 2 * h + 1, 2 * w + 1]
                    grads = slope[group, c, h, w]
                    # A negative scale turns the order around, so the largest entry is found by the product.
                    for j in range(wide):
                        top = max(max(a[j] * k, b[j] * k), max(d[j] * k, e[j] * k))
                        hit = (
                            a[j] if a[j] * k == top else b[j] if b[j] * k == top else d[j] if d[j] * k == top else e[j]
                        )
                        g = grads[j] if top + t > zero else zero
                        one[j] += g
                        two[j] += g * (hit - m)
            for j in range(wide):
                first[c] += one[j]
                second[c] += two[j]
                one[j] = zero
                two[j] = zero


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def gradient_pooled(z: Array, slope: Array, mean: Array, scale: Array, shift: Array, constant: Array, factor: Array,
                    dz: Array) -> None:  # fmt: skip
    """As `gradient`, through the pooling."""
    zero, wide = np.float32(0), slope.shape[4]
    # One output array per loop: with four the compiler does not vectorise.
    entry, share = np.empty(wide, np.int32), np.empty(wide, np.float32)
    for group in range(slope.shape[0]):
        for c in range(slope.shape[1]):
            k, t, f = scale[c], shift[c], factor[c]
            base = constant[c] - f * mean[c]
            for h in range(slope.shape[2]):
                for w in range(slope.shape[3]):
                    a, b = z[group, c, 2 * h, 2 * w], z[group, c, 2 * h, 2 * w + 1]
                    d, e = z[group, c, 2 * h + 1, 2 * w], z[group, c, 2 * h + 1, 2 * w + 1]
                    grads = slope[group, c, h, w]
                    for j in range(wide):
                        top = max(max(a[j] * k, b[j] * k), max(d[j] * k, e[j] * k))
                        entry[j] = 0 if a[j] * k == top else 1 if b[j] * k == top else 2 if d[j] * k == top else 3
                        share[j] = k * grads[j] if top + t > zero else zero
                    for number in range(4):
                        x = z[group, c, 2 * h + number // 2, 2 * w + number % 2]
                        out = dz[group, c, 2 * h + number // 2, 2 * w + number % 2]
                        for j in range(wide):
                            g = share[j] if entry[j] == number else zero
                            out[j] = g + base + f * x[j]
