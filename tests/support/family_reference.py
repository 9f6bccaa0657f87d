"""Slow twins of the family of scores and densities, each from its paper's formula, in float64.

Weights are `dict[str, ndarray]` in layer order, of shape (outputs, inputs); nothing is taken from the library.
"""

import itertools
import math

import numpy as np
import torch

from reference import Arrays


def lamp(weights) -> Arrays:
    """Lee et al. 2021: w_u^2 / sum of w_v^2 over v >= u, weights of a layer in ascending order of magnitude."""
    scores = {}
    for name, weight in weights.items():
        flat = weight.ravel()
        # Among equals the earlier position counts as the larger one: it stays longer.
        rank = sorted(range(flat.size), key=lambda at: (-abs(flat[at]), at))
        above = {at: math.fsum(flat[other] ** 2 for other in rank[: place + 1]) for place, at in enumerate(rank)}
        scores[name] = np.array([flat[at] ** 2 / above[at] if above[at] else 0.0 for at in range(flat.size)])
        scores[name] = scores[name].reshape(weight.shape)
    return scores


# PHEW (Patil, Dovrolis 2021)


def _chain_paths(weights):
    """Every path of a chain, as a unit per level."""
    matrices = list(weights.values())
    return itertools.product(*(range(size) for size in (matrices[0].shape[1], *(len(matrix) for matrix in matrices))))


def walk_rates(weights) -> Arrays:
    """The probability that a walk takes a weight, by summing over all paths; half of the walks go backwards."""
    rates = {name: np.zeros(weight.shape) for name, weight in weights.items()}
    first, last = next(iter(weights.values())).shape[1], len(list(weights.values())[-1])
    for path in _chain_paths(weights):
        steps = list(zip(weights, itertools.pairwise(path), strict=True))
        ahead = math.prod(abs(weights[n][o, i]) / np.abs(weights[n][:, i]).sum() for n, (i, o) in steps) / first
        back = math.prod(abs(weights[n][o, i]) / np.abs(weights[n][o]).sum() for n, (i, o) in steps) / last
        for name, (i, o) in steps:
            rates[name][o, i] += (ahead + back) / 2
    return rates


def phew_masks(weights, keep, seed) -> Arrays:
    """Walks in turn from the next input and from the next output until so many weights were passed."""
    rng = np.random.default_rng(seed)
    names = list(weights)
    masks = {name: np.zeros(weight.shape, dtype=bool) for name, weight in weights.items()}
    inputs, outputs = weights[names[0]].shape[1], len(weights[names[-1]])
    for turn in itertools.count():
        forward = turn % 2 == 0
        unit = turn // 2 % (inputs if forward else outputs)
        for name in names if forward else reversed(names):
            chances = np.abs(weights[name][:, unit] if forward else weights[name][unit])
            other = rng.choice(len(chances), p=chances / chances.sum())
            masks[name][(other, unit) if forward else (unit, other)] = True
            unit = other
            if sum(int(mask.sum()) for mask in masks.values()) == keep:
                return masks
    raise AssertionError


def ntk_sap(outputs, masks, draws, step=1e-6) -> Arrays:
    """Wang et al. 2023: |d/dm sum over draws of |f(x; w m) - f(x; (w + dw) m)|^2|, by central differences.

    `outputs(x, weights)` runs the network; a draw is (w, x, dw); scores of pruned weights are zero.
    """

    def distance(switches):
        total = 0.0
        for drawn, x, move in draws:
            here = outputs(x, {n: w * switches[n] for n, w in drawn.items()})
            there = outputs(x, {n: (w + move[n]) * switches[n] for n, w in drawn.items()})
            total += float(((here - there) ** 2).sum())
        return total

    return {name: np.abs(slope) * masks[name] for name, slope in _differences(distance, masks, step).items()}


def px(weights, inputs) -> Arrays:
    """Iurada et al. 2024, on a ReLU chain: w^2 dR/dw^2, R = sum over data and outputs of two sums over paths.

    The one has the squared input of each path that is active on the data, the other its squared weights.
    """
    names, last = list(weights), len(list(weights.values())[-1])
    reached = np.zeros(last)
    for x in inputs:
        active, value = [np.ones(len(x))], x
        for name in names:
            value = weights[name] @ value
            value = value if name == names[-1] else np.maximum(value, 0)
            active.append(np.ones(last) if name == names[-1] else (value > 0).astype(float))
        for path in _chain_paths(weights):
            there = all(weights[n][o, i] for n, (i, o) in zip(names, itertools.pairwise(path), strict=True))
            reached[path[-1]] += there * x[path[0]] ** 2 * math.prod(a[u] for a, u in zip(active, path, strict=True))
    scores = {name: np.zeros(weight.shape) for name, weight in weights.items()}
    for path in _chain_paths(weights):
        steps = list(zip(names, itertools.pairwise(path), strict=True))
        value = reached[path[-1]] * math.prod(weights[name][o, i] ** 2 for name, (i, o) in steps)
        for name, (i, o) in steps:
            scores[name][o, i] += value
    return scores


def prospr(loss, weights, masks, batches, steps=3, lr=0.5, momentum=0.9, step=1e-5) -> Arrays:
    """Alizadeh et al. 2022: |dL(w_K)/dc|, w_0 = c w, by training each c + h: SGD with momentum, a batch a step."""

    def trained(switches):
        own = {n: torch.tensor(w * switches[n]).requires_grad_() for n, w in weights.items()}
        optimizer = torch.optim.SGD(own.values(), lr=lr, momentum=momentum)
        for at in range(steps):
            optimizer.zero_grad()
            loss(own, batches[at % len(batches)]).backward()
            for name, weight in own.items():
                weight.grad *= torch.tensor(masks[name])
            optimizer.step()
        return float(loss(own, batches[steps % len(batches)]).detach())

    return {name: np.abs(slope) * masks[name] for name, slope in _differences(trained, masks, step).items()}


def _differences(function, point, step) -> Arrays:
    """(f(m + h) - f(m - h)) / 2h, one entry at a time."""
    slopes = {name: np.zeros(value.shape) for name, value in point.items()}
    for name, slope in slopes.items():
        for at in np.ndindex(slope.shape):
            values = []
            for sign in (1, -1):
                moved = {n: np.array(value, dtype=float) for n, value in point.items()}
                moved[name][at] += sign * step
                values.append(function(moved))
            slope[at] = (values[0] - values[1]) / (2 * step)
    return slopes


# Densities


def er_densities(shapes, density) -> dict[str, float]:
    """Mocanu et al. 2018: density = eps (inputs + outputs) / (inputs * outputs), at most one, eps by the total."""
    raw = {name: sum(shape[:2]) / math.prod(shape[:2]) for name, shape in shapes.items()}
    return _capped(raw, shapes, density)


def igq_densities(shapes, density) -> dict[str, float]:
    """Vysogorets, Kempe 2023: cylinders of length n and area 1/n under one force F have the length n / (1 + F n)."""
    low, high = 0.0, 1e6
    for _ in range(300):
        force = (low + high) / 2
        found = {name: 1 / (1 + force * math.prod(shape)) for name, shape in shapes.items()}
        low, high = (force, high) if _total(found, shapes) > density * _total({}, shapes) else (low, force)
    return found


def smart_densities(shapes, density) -> dict[str, float]:
    """Su et al. 2020: the last layer keeps 0.3, layer l of L goes by (L - l + 1)^2 + (L - l + 1), at most one."""
    *others, last = shapes
    depth = len(shapes)
    raw = {name: (depth - at) ** 2 + (depth - at) for at, name in enumerate(others)}
    left = density * _total({}, shapes) - 0.3 * math.prod(shapes[last])
    inner = {name: shapes[name] for name in others}
    return _capped(raw, inner, left / _total({}, inner)) | {last: 0.3}


def _total(densities, shapes) -> float:
    return sum(densities.get(name, 1.0) * math.prod(shape) for name, shape in shapes.items())


def _capped(raw, shapes, density) -> dict[str, float]:
    low, high = 0.0, 1e9
    for _ in range(300):
        eps = (low + high) / 2
        found = {name: min(1.0, eps * ratio) for name, ratio in raw.items()}
        low, high = (low, eps) if _total(found, shapes) > density * _total({}, shapes) else (eps, high)
    return found
