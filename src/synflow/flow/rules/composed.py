"""Distances, losses, sums of logarithms, complex numbers, experts, Fourier transforms."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dispatch import Function, NoRuleError, Rule, composite, stand_in
from ..tensor import Flow, fixed
from .basic import at_one, rearranged, settled
from .choices import even_order


def loss(function: Function, x: Any, *args: Any, reduction: str = "mean", **named: Any) -> Any:
    """A loss grows with what it compares: the mean of the predictions."""
    flow = x if isinstance(x, Flow) else next(a for a in (*args, *named.values()) if isinstance(a, Flow))
    if reduction != "none":
        return flow.mean()
    plain = [fixed(a) if isinstance(a, Flow) else a for a in (x, *args)]
    shape = function(*plain, reduction="none", **named).shape
    return flow if shape == flow.shape else flow.mean(1).expand(shape)


def distance(function: Function, a: Any, b: Any, p: float = 2.0, *_: Any, **__: Any) -> Any:
    """The norm of a difference, which counts as a sum: of all pairs of rows, of each row, or of all entries."""
    if function.__name__ == "cdist":
        a, b = a.unsqueeze(-2), b.unsqueeze(-3)
    total = a + b
    return torch.linalg.vector_norm(total, p) if function.__name__ == "dist" else total.norm(p, -1)


def differences(x: Any, n: int = 1, dim: int = -1) -> Any:
    """diff: neighbours, added."""
    for _ in range(n):
        x = x.narrow(dim, 1, x.size(dim) - 1) + x.narrow(dim, 0, x.size(dim) - 1)
    return x


def grouped_product(x: Any, weight: Any, offs: Any = None, *_: Any, **__: Any) -> Any:
    """grouped_mm: the rows of each expert by its own matrix."""
    ends = [0, *offs.tolist()]
    parts = [x[a:b] @ weight[at] for at, (a, b) in enumerate(pairwise(ends)) if b > a]
    rest = x[ends[-1] :]
    return torch.cat([*parts, rest.new_zeros(len(rest), weight.size(-1))]) if len(rest) else torch.cat(parts)


def sampled(function: Function, x: Any, grid: Any, *args: Any, **named: Any) -> Any:
    """grid_sample: as it is, or at positions that depend on a flow, where any may be seen: the mean, gated by them."""
    return _anywhere(function, x, grid) if isinstance(grid, Flow) else rearranged(function, x, grid, *args, **named)


@stand_in
def _anywhere(x: Any, grid: Any) -> Any:
    image, gate = x.flatten(2).mean(-1), at_one(grid.sum(-1)).unsqueeze(1)
    return image.reshape(*image.shape, *[1] * (gate.dim() - 2)) * gate


def grid_of(theta: Any, size: Any, *_: Any, **__: Any) -> Any:
    """affine_grid: coordinates are at most one, so the sum of the coefficients at every position."""
    total = theta.sum(-1)
    shape = [len(total), *[1] * (len(size) - 2), total.size(-1)]
    return total.reshape(shape).expand(len(total), *size[2:], total.size(-1))


def regions(x: Any, boxes: Any, scale: float, height: int, width: int, *_: Any, **__: Any) -> Any:
    """roi_align and roi_pool: a region may lie anywhere, so the mean, gated by the boxes."""
    gate = at_one(boxes.sum(1)) if isinstance(boxes, Flow) else torch.ones(len(boxes), device=x.device, dtype=x.dtype)
    return x.mean((0, 2, 3))[:, None, None] * gate[:, None, None, None].expand(-1, x.size(1), height, width)


def deformable(x: Any, weight: Any, offset: Any, mask: Any, bias: Any, *settings: Any) -> Any:
    """deform_conv2d: a convolution, gated by the offsets and the mask."""
    down, across, top, left, first, second, groups = settings[:7]
    result = F.conv2d(x, weight, None, (down, across), (top, left), (first, second), groups)
    for gate in (offset, mask):
        if isinstance(gate, Flow):
            result = result * at_one(gate.mean(1, keepdim=True))
    return result + bias[:, None, None]


def transform(
    function: Function, x: Flow, size: Any = None, dim: Any = None, norm: str | None = None, **named: Any
) -> Any:
    """A Fourier transform: its coefficients have the absolute value one, so each output is the sum of all inputs."""
    name, size = function.__name__, named.get("n", named.get("s", size))
    if dim is None:
        length = len(size) if isinstance(size, (tuple, list)) else x.dim()
        over: Any = range(-length, 0) if name.endswith("n") else (-2, -1) if name.endswith("2") else -1
    else:
        over = dim
    dims = [axis % x.dim() for axis in ([over] if isinstance(over, int) else over)]
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


_FOURIER = [f"fft_{kind}{dims}" for kind in ("fft", "ifft", "rfft", "irfft") for dims in ("", "2", "n")]
_LOSSES = """
cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
kl_div ctc_loss poisson_nll_loss gaussian_nll_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss
multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss triplet_margin_loss
""".split()

# Rules that need not know which function was called, by the names of the functions.
_STAND_INS: dict[str, Rule] = {
    "diff": differences,
    "grouped_mm _grouped_mm grouped_mm_fallback": grouped_product,
    "affine_grid": grid_of,
    "roi_align roi_pool": regions,
    "deform_conv2d": deformable,
    # All signs are positive.
    "cross linalg_cross": lambda a, b, dim=-1: a.roll(-1, dim) * b.roll(-2, dim) + a.roll(-2, dim) * b.roll(-1, dim),
    "cosine_similarity": lambda a, b, dim=1, eps=1e-8: (
        F.normalize(a, dim=dim, eps=eps) * F.normalize(b, dim=dim, eps=eps)
    ).sum(dim),
    # Logarithm and exponential cancel; the logarithm alone is an activation.
    "logsumexp": lambda x, dim, keepdim=False: x.mean(dim, keepdim),
    "xlogy": lambda a, b: a * b,
    # They grow with either of two flows.
    "logaddexp logaddexp2 hypot atan2": lambda a, b: a + b,
    # Factors are near one, so that a product of many keeps its scale.
    "prod": lambda x, *args, **named: at_one(x.mean(*args, **named)),
    "cumprod": lambda x, *args, **named: at_one(x.cumsum(*args, **named)),
    "addr": lambda start, a, b, beta=1, alpha=1: start * abs(beta) + torch.outer(a, b) * abs(alpha),
    "addbmm": lambda start, a, b, beta=1, alpha=1: start * abs(beta) + torch.bmm(a, b).sum(0) * abs(alpha),
    # A flow stands for the absolute value of complex numbers: at most the sum of both parts, at least each of them.
    "polar": lambda size, angle: size if isinstance(size, Flow) else size * at_one(angle),
    "complex": lambda real, imaginary: real + imaginary,
    "view_as_complex": lambda x: x.sum(-1),
    "view_as_real": lambda x: torch.stack([x, x], -1),
    "softmin gumbel_softmax": lambda x, *_, dim=-1, **__: torch.softmax(x, dim),
    # They are bounded, as gates are.
    "sign sgn cos heaviside erfc sinc bernoulli": lambda x, *_, **__: torch.sigmoid(x),
    # Every box may stay; of the best few, which a detector then takes, some are to come from each feature map.
    "nms": lambda boxes, *_, **__: even_order(len(boxes), boxes.device),
}

TABLE: dict[str, Rule] = {
    "grid_sample": sampled,
    **dict.fromkeys(_FOURIER, transform),
    **dict.fromkeys(_LOSSES, composite(loss)),
    **dict.fromkeys(("cdist", "pairwise_distance", "dist"), composite(distance)),
    **{name: stand_in(rule) for names, rule in _STAND_INS.items() for name in names.split()},
}
