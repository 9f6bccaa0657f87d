"""Rules written in torch operations on flows: distances, losses, sums of logarithms, complex numbers, experts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dispatch import Rule, composite
from ..tensor import Flow, fixed
from .basic import rearranged


def at_one(x: Any) -> Any:
    """A gate that is one where flow arrives, see `choices.gate_at_one`."""
    return x / x if isinstance(x, Flow) else x


def loss(function: Callable[..., Any], x: Any, *args: Any, reduction: str = "mean", **named: Any) -> Any:
    """A loss grows with what it compares: the mean of the predictions."""
    flow = x if isinstance(x, Flow) else next(a for a in (*args, *named.values()) if isinstance(a, Flow))
    if reduction != "none":
        return flow.mean()
    plain = [fixed(a) if isinstance(a, Flow) else a for a in (x, *args)]
    shape = function(*plain, reduction="none", **named).shape
    return flow if shape == flow.shape else flow.mean(1).expand(shape)


def cross(function: Callable[..., Any], a: Any, b: Any, dim: int = -1) -> Any:
    """The cross product with all signs positive."""
    return a.roll(-1, dim) * b.roll(-2, dim) + a.roll(-2, dim) * b.roll(-1, dim)


def distance(function: Callable[..., Any], a: Any, b: Any, p: float = 2.0, *_: Any, **__: Any) -> Any:
    """The norm of a difference, which counts as a sum: of all pairs of rows, of each row, or of all entries."""
    if function.__name__ == "cdist":
        a, b = a.unsqueeze(-2), b.unsqueeze(-3)
    total = a + b
    return torch.linalg.vector_norm(total, p) if function.__name__ == "dist" else total.norm(p, -1)


def similarity(function: Callable[..., Any], a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Cosine similarity: the product over both lengths."""
    return (F.normalize(a, dim=dim, eps=eps) * F.normalize(b, dim=dim, eps=eps)).sum(dim)


def differences(function: Callable[..., Any], x: Any, n: int = 1, dim: int = -1) -> Any:
    """diff: neighbours, added."""
    for _ in range(n):
        x = x.narrow(dim, 1, x.size(dim) - 1) + x.narrow(dim, 0, x.size(dim) - 1)
    return x


def log_sum(function: Callable[..., Any], x: Any, dim: Any, keepdim: bool = False) -> Any:
    """logsumexp: a mean, as logarithm and exponential cancel."""
    return x.mean(dim, keepdim)


def products(function: Callable[..., Any], x: Any, *args: Any, **named: Any) -> Any:
    """prod and cumprod: factors that are near one, so that a product of many keeps its scale."""
    if function.__name__ == "prod":
        return at_one(x.mean(*args, **named))
    return at_one(x.cumsum(*args, **named))


def outer_sum(function: Callable[..., Any], start: Any, first: Any, second: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    """addr and addbmm."""
    result = torch.outer(first, second) if function.__name__ == "addr" else torch.bmm(first, second).sum(0)
    return start * abs(beta) + result * abs(alpha)


def complex_parts(function: Callable[..., Any], x: Any, other: Any = None) -> Any:
    """Complex numbers from parts: the flow stands for their absolute value, at most the sum of both."""
    if function.__name__ == "polar":
        return x if isinstance(x, Flow) else x * at_one(other)
    return x.sum(-1) if other is None else x + other


def real_parts(function: Callable[..., Any], x: Any) -> Any:
    """view_as_real: both parts may be as large as the absolute value."""
    return torch.stack([x, x], -1)


def grouped_product(function: Callable[..., Any], x: Any, weight: Any, offs: Any = None, *_: Any, **__: Any) -> Any:
    """grouped_mm: the rows of each expert by its own matrix."""
    ends = [0, *offs.tolist()]
    parts = [x[a:b] @ weight[at] for at, (a, b) in enumerate(pairwise(ends)) if b > a]
    rest = x[ends[-1] :]
    return torch.cat([*parts, rest.new_zeros(len(rest), weight.size(-1))]) if len(rest) else torch.cat(parts)


def softmax_of(function: Callable[..., Any], x: Any, *args: Any, dim: int = -1, **_: Any) -> Any:
    """softmin, gumbel_softmax: a softmax."""
    return torch.softmax(x, dim)


def sampled(function: Callable[..., Any], x: Any, grid: Any, *args: Any, **named: Any) -> Any:
    """grid_sample: as it is, or at positions that depend on a flow, where any may be seen: the mean, gated by them."""
    return _anywhere(function, x, grid) if isinstance(grid, Flow) else rearranged(function, x, grid, *args, **named)


@composite
def _anywhere(function: Callable[..., Any], x: Any, grid: Any) -> Any:
    image, gate = x.flatten(2).mean(-1), at_one(grid.sum(-1)).unsqueeze(1)
    return image.reshape(*image.shape, *[1] * (gate.dim() - 2)) * gate


def grid_of(function: Callable[..., Any], theta: Any, size: Any, *_: Any, **__: Any) -> Any:
    """affine_grid: coordinates are at most one, so the sum of the coefficients at every position."""
    total = theta.sum(-1)
    shape = [len(total), *[1] * (len(size) - 2), total.size(-1)]
    return total.reshape(shape).expand(len(total), *size[2:], total.size(-1))


def bounded(function: Callable[..., Any], x: Any, *_: Any, **__: Any) -> Any:
    """sign, cos and the like: a gate, as sigmoid is."""
    return torch.sigmoid(x)


def multiplied(function: Callable[..., Any], a: Any, b: Any) -> Any:
    """xlogy: a product, with the logarithm as an activation."""
    return a * b


def kept_boxes(function: Callable[..., Any], boxes: Any, *_: Any, **__: Any) -> Tensor:
    """nms: every box may stay."""
    return torch.arange(len(boxes), device=boxes.device)


def regions(
    function: Callable[..., Any], x: Any, boxes: Any, scale: float, height: int, width: int, *_: Any, **__: Any
) -> Any:
    """roi_align and roi_pool: a region may lie anywhere, so the mean, gated by the boxes."""
    gate = at_one(boxes.sum(1)) if isinstance(boxes, Flow) else torch.ones(len(boxes), device=x.device, dtype=x.dtype)
    return x.mean((0, 2, 3))[:, None, None] * gate[:, None, None, None].expand(-1, x.size(1), height, width)


def deformable(
    function: Callable[..., Any], x: Any, weight: Any, offset: Any, mask: Any, bias: Any, *settings: Any
) -> Any:
    """deform_conv2d: a convolution, gated by the offsets and the mask."""
    down, across, top, left, first, second, groups = settings[:7]
    result = F.conv2d(x, weight, None, (down, across), (top, left), (first, second), groups)
    for gate in (offset, mask):
        if isinstance(gate, Flow):
            result = result * at_one(gate.mean(1, keepdim=True))
    return result + bias[:, None, None]


def angle_of(function: Callable[..., Any], a: Any, b: Any) -> Any:
    """Functions of two flows that grow with either: their sum."""
    return a + b


_LOSSES = """
cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
kl_div ctc_loss poisson_nll_loss gaussian_nll_loss cosine_embedding_loss hinge_embedding_loss margin_ranking_loss
multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss triplet_margin_loss
""".split()
_BOUNDED = "sign sgn cos heaviside erfc sinc bernoulli".split()

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_LOSSES, loss),
    **dict.fromkeys(("cdist", "pairwise_distance", "dist"), distance),
    **dict.fromkeys(("logaddexp", "logaddexp2", "hypot", "atan2"), angle_of),
    **dict.fromkeys(("prod", "cumprod"), products),
    **dict.fromkeys(("addr", "addbmm"), outer_sum),
    **dict.fromkeys(("view_as_complex", "complex", "polar"), complex_parts),
    **dict.fromkeys(("grouped_mm", "_grouped_mm", "grouped_mm_fallback"), grouped_product),
    **dict.fromkeys(("softmin", "gumbel_softmax"), softmax_of),
    **dict.fromkeys(_BOUNDED, bounded),
    "affine_grid": grid_of,
    "nms": kept_boxes,
    **dict.fromkeys(("roi_align", "roi_pool"), regions),
    "deform_conv2d": deformable,
    "cross": cross,
    "linalg_cross": cross,
    "cosine_similarity": similarity,
    "diff": differences,
    "logsumexp": log_sum,
    "view_as_real": real_parts,
    "xlogy": multiplied,
}
TABLE: dict[str, Rule] = {"grid_sample": sampled, **{name: composite(rule) for name, rule in _RULES.items()}}
