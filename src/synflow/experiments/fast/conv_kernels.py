"""Convolutions that multiply by the kept weights only, compiled by numba.

Tensors are groups of images: (groups, channels, height, width, images of a group). For one kept weight, a row of output
is a row of inputs times a number: both are contiguous, also when the stride is not 1, because columns are copied into a
padded work space ordered by their remainder modulo the stride. The work space of one group fits into the second cache.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["convolve", "input_gradient", "weight_gradient"]

# Sums may be taken in any order and products contracted; not-a-number and infinity keep their meaning.
SUMS = {"contract", "reassoc", "nsz"}

Array = Any


@njit(nogil=True, cache=True, error_model="numpy")
def _fill(image: Array, pad: int, stride: int, rows: int, columns: int, work: Array) -> None:
    """Copy a group's image into the padded work space: channel, row, remainder of the column, column, image."""
    channels, height, width, wide = image.shape
    line = stride * columns * wide
    for c in range(channels):
        for h in range(height):
            start = (c * rows + h + pad) * line
            if stride == 1:
                place, flat = start + pad * wide, image[c, h].ravel()
                work[place : place + len(flat)] = flat
            else:
                for w in range(width):
                    place = start + ((w + pad) % stride * columns + (w + pad) // stride) * wide
                    work[place : place + wide] = image[c, h, w]


@njit(nogil=True, cache=True, error_model="numpy")
def _drain(work: Array, pad: int, stride: int, rows: int, columns: int, image: Array) -> None:
    """The reverse of `_fill`."""
    channels, height, width, wide = image.shape
    line = stride * columns * wide
    for c in range(channels):
        for h in range(height):
            start = (c * rows + h + pad) * line
            for w in range(width):
                place = start + ((w + pad) % stride * columns + (w + pad) // stride) * wide
                image[c, h, w] = work[place : place + wide]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def convolve(x: Array, first: Array, places: Array, values: Array, bias: Array, shape: Any, y: Array) -> None:
    """y = the convolution of x; `first[c]` to `first[c + 1]` are the kept weights of output channel c.

    `places` are the weights' offsets in the work space, `shape` its padding, stride, rows and columns.
    """
    pad, stride, rows, columns = shape
    groups, channels, height, length = y.shape
    line = stride * columns * x.shape[4]
    work = np.zeros(x.shape[1] * rows * line, np.float32)
    for group in range(groups):
        _fill(x[group], pad, stride, rows, columns, work)
        for h in range(height):
            base = h * stride * line
            for c in range(channels):
                out, start = y[group, c, h], bias[c]
                for j in range(length):
                    out[j] = start
                k, end = first[c], first[c + 1]
                while k + 4 <= end:  # four at a time: the output row is read and written once for them
                    o, p, q, r = places[k] + base, places[k + 1] + base, places[k + 2] + base, places[k + 3] + base
                    a, b, d, e = work[o : o + length], work[p : p + length], work[q : q + length], work[r : r + length]
                    s, t, u, v = values[k], values[k + 1], values[k + 2], values[k + 3]
                    for j in range(length):
                        out[j] += s * a[j] + t * b[j] + u * d[j] + v * e[j]
                    k += 4
                while k < end:
                    o, s = places[k] + base, values[k]
                    a = work[o : o + length]
                    for j in range(length):
                        out[j] += s * a[j]
                    k += 1


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def weight_gradient(x: Array, first: Array, places: Array, shape: Any, dy: Array, to_values: Array,
                    to_bias: Array) -> None:  # fmt: skip
    """Add the gradients of the kept weights and of the bias to `to_values` and `to_bias`."""
    pad, stride, rows, columns = shape
    groups, channels, height, length = dy.shape
    line, zero = stride * columns * x.shape[4], np.float32(0)
    work = np.zeros(x.shape[1] * rows * line, np.float32)
    for group in range(groups):
        _fill(x[group], pad, stride, rows, columns, work)
        for h in range(height):
            base = h * stride * line
            for c in range(channels):
                grads, total = dy[group, c, h], zero
                for j in range(length):
                    total += grads[j]
                to_bias[c] += total
                k, end = first[c], first[c + 1]
                while k + 4 <= end:
                    o, p, q, r = places[k] + base, places[k + 1] + base, places[k + 2] + base, places[k + 3] + base
                    a, b, d, e = work[o : o + length], work[p : p + length], work[q : q + length], work[r : r + length]
                    s, t, u, v = zero, zero, zero, zero
                    for j in range(length):
                        g = grads[j]
                        s += g * a[j]
                        t += g * b[j]
                        u += g * d[j]
                        v += g * e[j]
                    to_values[k] += s
                    to_values[k + 1] += t
                    to_values[k + 2] += u
                    to_values[k + 3] += v
                    k += 4
                while k < end:
                    o, s = places[k] + base, zero
                    a = work[o : o + length]
                    for j in range(length):
                        s += grads[j] * a[j]
                    to_values[k] += s
                    k += 1


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def input_gradient(dy: Array, first: Array, places: Array, values: Array, shape: Any, dx: Array) -> None:
    """dx = the gradient of the input, for any stride; with stride 1 `convolve` with mirrored weights is faster."""
    pad, stride, rows, columns = shape
    groups, channels, height, length = dy.shape
    line = stride * columns * dx.shape[4]
    work = np.empty(dx.shape[1] * rows * line, np.float32)
    for group in range(groups):
        work[:] = 0
        for h in range(height):
            base = h * stride * line
            for c in range(channels):
                grads = dy[group, c, h]
                for k in range(first[c], first[c + 1]):
                    o, s = places[k] + base, values[k]
                    out = work[o : o + length]
                    for j in range(length):
                        out[j] += s * grads[j]
        _drain(work, pad, stride, rows, columns, dx[group])
