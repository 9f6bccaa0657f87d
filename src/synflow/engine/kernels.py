"""Loops that no array library has in one pass: bound a score, multiply it out where it may be light, keep it if it is.

Compiled by numba where it is installed (the extra `fast`), once per machine, and run on as many threads as torch
uses. Without numba, on other devices and for small networks the same is done in several passes (candidate_passes.py).
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import config, njit

# Weights per inner loop: few enough that their values, bounds and flags stay in the first-level cache.
WIDE = 512
# The limit is raised by this share; rounding moves a bound by far less, so that no light score is missed.
CLOSE = 1e-4
# Sums may be taken in any order; not-a-number and infinity keep their meaning.
SUMS = {"contract", "reassoc", "nsz"}

Array = Any

if config.DISABLE_JIT:  # to measure which lines tests reach

    def trailing_zeros(word: Any) -> int:
        """How many of the lowest bits are zero."""
        return (int(word) & -int(word)).bit_length() - 1

else:
    from numba.cpython.unsafe.numbers import trailing_zeros  # type: ignore[no-redef]


@njit(nogil=True, cache=True)
def _where(words: Array, some: Array, hits: Array) -> int:
    """List where flags are set. Few are, so eight flags are read as one word, and empty words are skipped."""
    number = 0
    for k in range(len(words)):
        some[number] = k
        number += words[k] != 0
    found = 0
    for index in range(number):
        k = some[index]
        word = words[k]
        while word != 0:
            hits[found] = 8 * k + (trailing_zeros(word) >> 3)
            found += 1
            word &= word - np.uint64(1)
    return found


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def lower_bounds(left: Array, seen: Array, parts: Array, sums: Array, tiny: Any) -> Any:
    """Fill `sums` and `parts` so that `left @ seen.T >= sums[row, kind] * parts[column]`, kind = column % kinds.

    Returns an upper bound of all products, and the least of zero and the entries of `left`: the bounds do not hold for
    negative entries.

    Each unit sums many weights, so at each position the entries of a column are close to the mean over the columns of
    its kind. The smallest ratio of an entry to that mean is a tight lower bound for the whole column.
    """
    kinds, inner = sums.shape[1], seen.shape[1]
    means = np.zeros((kinds, inner), seen.dtype)
    inverse = np.zeros((kinds, inner), seen.dtype)
    top = seen.dtype.type(0)
    for j in range(len(seen)):
        mean, line = means[j % kinds], seen[j]
        for p in range(inner):
            mean[p] += line[p]
            top = max(top, line[p])
    for t in range(kinds):
        for p in range(inner):
            means[t, p] *= kinds / len(seen)
            if means[t, p] > tiny:
                inverse[t, p] = 1 / means[t, p]
            else:
                means[t, p] = 0
    for j in range(len(seen)):
        mean, line = inverse[j % kinds], seen[j]
        least = seen.dtype.type(np.inf)
        for p in range(inner):
            part = line[p] * mean[p]
            least = min(least, part if mean[p] > 0 else least)
        parts[j] = least if least < np.inf else 0
    most, negative = left.dtype.type(0), left.dtype.type(0)
    for i in range(len(left)):
        line = left[i]
        for p in range(inner):
            most, negative = max(most, line[p]), min(negative, line[p])
        for t in range(kinds):
            mean, total = means[t], left.dtype.type(0)
            for p in range(inner):
                total += line[p] * mean[p]
            sums[i, t] = total
    return most * top * inner, negative


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def pick_product(
    weights: Array, left: Array, sums: Array, seen: Array, parts: Array, high: Any, tiny: Any, root: bool,
    places: Array, values: Array, first: int,
) -> int:  # fmt: skip
    """Find scores `weights * (left @ seen.T)` that are no more than `high`, of weights that are not zero.

    With `root`, scores are `weights * sqrt(left @ seen.T)`, whose squares are bounded like the others. Writes their
    places, counted from `first`, and their values; returns their number, or -1 if they do not fit. A score is
    multiplied out only if its lower bound does not exceed `high`.
    """
    (rows, columns), kinds, inner = weights.shape, sums.shape[1], left.shape[1]
    wide = min(max(WIDE // kinds, 1) * kinds, columns)
    limits = np.empty(wide, weights.dtype)
    flags = np.zeros((wide + 7) // 8 * 8, np.bool_)
    words = flags.view(np.uint64)
    some, hits = np.empty(len(words) + 1, np.int32), np.empty(len(flags) + 1, np.int32)
    squares = np.empty(wide, weights.dtype)
    room, found, slack = len(places) - wide, 0, high * weights.dtype.type(1 + CLOSE)
    if root:  # a limit whose square underflows is raised: more scores are then multiplied out than needed
        slack = max(slack * slack, tiny) if slack > 0 else slack
    for i in range(rows):
        for t in range(kinds):
            limit = slack / sums[i, t] if sums[i, t] > tiny else np.inf
            for j in range(t, wide, kinds):
                limits[j] = limit
        line = left[i]
        for start in range(0, columns, wide):
            width = min(wide, columns - start)
            if found > room:
                return -1
            row, part = weights[i, start : start + width], parts[start : start + width]
            base = first + i * columns + start
            if root:
                for j in range(width):
                    squares[j] = row[j] * row[j]
            factor = squares if root else row
            for j in range(width):
                flags[j] = (factor[j] * part[j] <= limits[j]) & (row[j] > 0)
            flags[width:] = False
            for index in range(_where(words, some, hits)):
                j = hits[index]
                column = seen[start + j]
                score = weights.dtype.type(0)
                for p in range(inner):
                    score += line[p] * column[p]
                score = row[j] * (np.sqrt(score) if root else score)
                places[found] = base + j
                values[found] = score
                found += score <= high
    return found


@njit(nogil=True, cache=True, fastmath=SUMS)
def products_at(positions: Array, left: Array, seen: Array, weights: Array, root: bool, values: Array) -> None:
    """Scores `weights * (left @ seen.T)`, or with its root, at some flat positions."""
    for index in range(len(positions)):
        line, column = left[positions[index] // len(seen)], seen[positions[index] % len(seen)]
        total = weights[positions[index]] * 0
        for p in range(len(line)):
            total += line[p] * column[p]
        values[index] = weights[positions[index]] * (np.sqrt(total) if root else total)


@njit(nogil=True, cache=True, fastmath=SUMS)
def sum_of_roots(weights: Array, left: Array, right: Array) -> float:
    """The sum of `weights * sqrt(left @ right)`, for few positions."""
    (rows, columns), inner, total = weights.shape, left.shape[1], 0.0
    products = np.empty(min(WIDE, columns), weights.dtype)
    for i in range(rows):
        for start in range(0, columns, WIDE):
            width = min(WIDE, columns - start)
            row, part = weights[i, start : start + width], weights.dtype.type(0)
            products[:width] = 0
            for p in range(inner):
                factor, line = left[i, p], right[p, start : start + width]
                for j in range(width):
                    products[j] += factor * line[j]
            for j in range(width):
                part += row[j] * np.sqrt(products[j])
            total += part
    return total


@cache
def pool() -> ThreadPoolExecutor:
    """The threads that compiled loops run on, besides the caller's own."""
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

    others = [pool().submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for other in others:
            other.result()
    return results
