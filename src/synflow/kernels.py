"""Loops that no array library has in one pass: multiply out a score, compare it, keep it if it is light.

Compiled by numba where it is installed (the extra `fast`), once per machine, and run on as many threads as torch
uses. Without numba, on other devices and for small networks the same is done in several passes (see picking.py).
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros

# Columns that are multiplied out at a time: four rows of them, and what they are made of, stay in the first cache.
WIDE = 256
# Sums may be taken in any order; not-a-number and infinity keep their meaning.
SUMS = {"contract", "reassoc", "nsz"}

Array = Any


@njit(nogil=True, cache=True, inline="always")
def _keep_light(
    line: Array,
    given: Array,
    high: Any,
    flags: Array,
    words: Array,
    first: int,
    places: Array,
    values: Array,
    found: int,
) -> int:
    """Add what is light in a line of scores to what was found; few are, so eight flags are looked at as one word."""
    width = len(given)
    for j in range(width):
        flags[j] = (line[j] <= high) & given[j]
    for j in range(width, (width + 7) // 8 * 8):
        flags[j] = False
    for k in range((width + 7) // 8):
        word = words[k]
        while word != 0:
            j = 8 * k + (trailing_zeros(word) >> 3)
            places[found] = first + j
            values[found] = line[j]
            found += 1
            word &= word - np.uint64(1)
    return found


@njit(nogil=True, cache=True, fastmath=SUMS)
def pick_product(
    weights: Array, kept: Array, left: Array, right: Array, high: Any, places: Array, values: Array, first: int
) -> int:
    """Find scores `weights * (left @ right)` of kept weights that are no more than `high`: places and values.

    How many there are, or -1 where there is no room for them; not in order. Positions are counted from `first`.
    `left` has a multiple of four rows, zeros where there are no weights; so has `right`, and `left` as many columns.
    """
    rows, columns = weights.shape
    inner, room, found = left.shape[1], len(places) - WIDE, 0
    block = np.empty((4, WIDE), weights.dtype)
    b0, b1, b2, b3 = block[0], block[1], block[2], block[3]
    flags = np.zeros(WIDE, np.bool_)
    words = flags.view(np.uint64)
    for top in range(0, rows, 4):
        for start in range(0, columns, WIDE):
            width = min(WIDE, columns - start)
            for p in range(0, inner, 4):
                r0, r1 = right[p, start : start + width], right[p + 1, start : start + width]
                r2, r3 = right[p + 2, start : start + width], right[p + 3, start : start + width]
                s, t, u, v = left[top], left[top + 1], left[top + 2], left[top + 3]
                s0, s1, s2, s3 = s[p], s[p + 1], s[p + 2], s[p + 3]
                t0, t1, t2, t3 = t[p], t[p + 1], t[p + 2], t[p + 3]
                u0, u1, u2, u3 = u[p], u[p + 1], u[p + 2], u[p + 3]
                v0, v1, v2, v3 = v[p], v[p + 1], v[p + 2], v[p + 3]
                if p == 0:
                    for j in range(width):
                        x0, x1, x2, x3 = r0[j], r1[j], r2[j], r3[j]
                        b0[j] = s0 * x0 + s1 * x1 + s2 * x2 + s3 * x3
                        b1[j] = t0 * x0 + t1 * x1 + t2 * x2 + t3 * x3
                        b2[j] = u0 * x0 + u1 * x1 + u2 * x2 + u3 * x3
                        b3[j] = v0 * x0 + v1 * x1 + v2 * x2 + v3 * x3
                else:
                    for j in range(width):
                        x0, x1, x2, x3 = r0[j], r1[j], r2[j], r3[j]
                        b0[j] += s0 * x0 + s1 * x1 + s2 * x2 + s3 * x3
                        b1[j] += t0 * x0 + t1 * x1 + t2 * x2 + t3 * x3
                        b2[j] += u0 * x0 + u1 * x1 + u2 * x2 + u3 * x3
                        b3[j] += v0 * x0 + v1 * x1 + v2 * x2 + v3 * x3
            for i in range(min(4, rows - top)):
                if found > room:
                    return -1
                row, given = weights[top + i, start : start + width], kept[top + i, start : start + width]
                line = block[i]
                for j in range(width):
                    line[j] *= row[j]
                base = first + (top + i) * columns + start
                found = _keep_light(line, given, high, flags, words, base, places, values, found)
    return found


@njit(nogil=True, cache=True)
def pick_dense(
    weights: Array, kept: Array, gradient: Array, high: Any, places: Array, values: Array, first: int
) -> int:
    """The same for flat weights whose gradient is there."""
    total, room, found = len(weights), len(places) - WIDE, 0
    line = np.empty(WIDE, weights.dtype)
    flags = np.zeros(WIDE, np.bool_)
    words = flags.view(np.uint64)
    for start in range(0, total, WIDE):
        width = min(WIDE, total - start)
        if found > room:
            return -1
        row, given, slope = (
            weights[start : start + width],
            kept[start : start + width],
            gradient[start : start + width],
        )
        for j in range(width):
            line[j] = row[j] * slope[j]
        found = _keep_light(line, given, high, flags, words, first + start, places, values, found)
    return found


@njit(nogil=True, cache=True, fastmath=SUMS)
def products_at(positions: Array, left: Array, right: Array, weights: Array, values: Array) -> None:
    """Scores `weights * (left @ right)` at some flat positions."""
    columns = right.shape[1]
    for index in range(len(positions)):
        row, column = positions[index] // columns, positions[index] % columns
        total = weights[positions[index]] * 0
        for p in range(len(right)):
            total += left[row, p] * right[p, column]
        values[index] = total * weights[positions[index]]


@njit(nogil=True, cache=True)
def clear(places: Array, values: Array, edge: Any, kept: Array, weights: Array) -> None:
    """Take the weights out whose values are below the edge."""
    for index in range(len(places)):
        if values[index] < edge:
            kept[places[index]] = False
            weights[places[index]] = 0


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="synflow")


def side_by_side(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of compiled loops, run on as many threads as torch may use."""
    threads = min(torch.get_num_threads(), len(tasks))
    if threads < 2:
        return [task() for task in tasks]
    results: list[Any] = [None] * len(tasks)
    left = iter(range(len(tasks)))  # what comes next, whoever is free; one step of an iterator is not interrupted

    def work() -> None:
        for index in left:
            results[index] = tasks[index]()

    others = [_pool().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for other in others:
            other.result()
    return results
