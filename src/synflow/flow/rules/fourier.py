"""Fourier transforms: every coefficient has the absolute value one, so each output is the sum of all inputs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..dispatch import Function, NoRuleError, Rule
from ..tensor import Flow, fixed
from .basic import settled

_NAMES = [f"fft_{kind}{dims}" for kind in ("fft", "ifft", "rfft", "irfft") for dims in ("", "2", "n")]


def transform(
    function: Function, x: Flow, size: Any = None, dim: Any = None, norm: str | None = None, **named: Any
) -> Any:
    """A discrete Fourier transform, forward or inverse, of real or complex data; the flow stays real."""
    name, size = function.__name__, named.get("n", named.get("s", size))
    dims = _dimensions(name, x, size, dim)
    zeros = torch.zeros_like(fixed(x))
    inverse, halves = "ifft" in name or "irfft" in name, "irfft" in name
    where = {} if dim is None else {"dim": dim}
    shape = function(zeros.to(torch.complex64) if halves else zeros, size, norm=norm, **where).shape
    points = math.prod((shape if halves else x.shape)[axis] for axis in dims)
    if size is not None and not halves and math.prod([size] if isinstance(size, int) else size) != points:
        raise NoRuleError(f"no rule for {name!r} of fewer or more points than there are; pad or cut before it")
    unscaled = "forward" if inverse else "backward"
    by = {unscaled: 1.0, "ortho": math.sqrt(points)}.get(norm or "backward", float(points))
    total = x.as_subclass(Tensor).sum(dims, keepdim=True) / by
    return settled(total.expand(shape).contiguous(), x.exponent, x.degrees)


def _dimensions(name: str, x: Tensor, size: Any, dim: Any) -> list[int]:
    """The dimensions that are transformed, as torch chooses them."""
    if dim is None:
        length = len(size) if isinstance(size, (tuple, list)) else x.dim()
        dim = range(-length, 0) if name.endswith("n") else (-2, -1) if name.endswith("2") else -1
    return [axis % x.dim() for axis in ([dim] if isinstance(dim, int) else dim)]


TABLE: dict[str, Rule] = dict.fromkeys(_NAMES, transform)
