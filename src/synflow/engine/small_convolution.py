"""A convolution with few positions as a product with the patches that its kernel sees.

With few positions weights are most of what has to be read, and a product reads them once, as they lie. Behind a mean
over all positions gradients are the same nearly everywhere, too: positions of which rows and columns of the gradient
are the same are taken together, on the way back and in the factors of the weight's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..flow.tensor import READING
from ..support.windows import places as places_seen
from ..support.windows import sizes
from .factored_gradient import Use
from .gather_pixels import add_back, pick
from .thin_products import back, through

# Gradients are looked at for lines that are the same where that saves a product with at least so many weights.
LARGE = 1 << 16
# Beyond this share of the positions, those that differ are too many to be worth it.
WORTH = 0.8


def unwritten(tensor: Tensor) -> Callable[[], Tensor | None]:
    """What a layer sends, for later; None once the model has written into it, as `y += x` may do."""
    kept, version = tensor.detach(), tensor._version
    return lambda: kept if kept._version == version else None


class Patches(torch.autograd.Function):
    """The convolution; its weight gradient is kept as factors where these are smaller."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, factors: Any, how: Any) -> Tensor:
        """Multiply the weights with the patches; `how` is stride, padding, dilation, groups."""
        places = places_seen(tuple(x.shape[2:]), tuple(weight.shape[2:]), *map(tuple, how[:3])).to(x.device)
        cut = pick(x.flatten(2), places).view(len(x), weight.shape[1:].numel(), -1)
        seen = cut[0] if len(x) == 1 else cut.transpose(0, 1).flatten(1)
        sent = through(weight.to(x.dtype).flatten(1), seen, factors.bounded)
        shape = (len(x), len(weight), *sizes(x.shape, weight.shape, how))
        sent = sent.view(shape) if len(x) == 1 else sent.unflatten(1, (len(x), -1)).transpose(0, 1).reshape(shape)
        ctx.save_for_backward(seen, weight, places)
        ctx.factors, ctx.size, ctx.sent = factors, x.shape, unwritten(sent)
        return sent

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        """The gradient of the input; that of the weight is left as factors where they are smaller."""
        (seen, weight, places), sent = ctx.saved_tensors, ctx.sent()
        gradient, right = gradients[0].detach(), seen.detach()
        if sent is not None:
            ctx.factors.add_flow((gradient * sent).sum())
        lines = _lines(gradient) if weight.numel() >= LARGE else None
        kinds = None
        if lines is not None:
            kinds = _kinds_of_positions(lines, right.dtype)
            gradient, right = _first_of(gradient, lines), right @ kinds.t()
            if READING.checks is not None:
                READING.checks.append((_spread(gradient[0], lines) == gradients[0][0]).all())
        single = len(gradient) == 1
        left = gradient.reshape(len(weight), -1) if single else gradient.flatten(2).transpose(0, 1).flatten(1)
        into = None
        if ctx.needs_input_grad[0] or sent is None:
            parts = back(weight.to(left.dtype).flatten(1), left, ctx.factors.bounded)
            if sent is None:
                ctx.factors.add_flow((parts * right).sum())
            parts = parts if kinds is None else parts @ kinds
            if not single:
                parts = parts.unflatten(1, (ctx.size[0], -1)).transpose(0, 1)
            into = add_back(parts.reshape(*ctx.size[:2], -1), places, ctx.size[2:].numel()).view(ctx.size)
        if ctx.factors.is_thin(right.shape[1]):
            ctx.factors.uses.append(Use(left, right.t()))
        else:
            ctx.factors.add_dense((left @ right.t()).view(weight.shape))
        return into, None, None, None


def _lines(gradient: Tensor) -> tuple[Tensor, Tensor] | None:
    """For each row and each column of an image the number of its kind: a line is of the kind of the one before if same.

    None where that saves little. That lines are the same is a matter of how the network is made, so it holds for other
    weights as well; a measurement that is repeated checks it all the same.
    """
    if len(gradient) != 1 or gradient.numel() == 0:
        return None
    READING.harmless = True
    try:
        found = [_kinds(gradient, dim) for dim in (2, 3)]
        if (int(found[0][-1]) + 1) * (int(found[1][-1]) + 1) > WORTH * gradient[0, 0].numel():
            return None
    finally:
        READING.harmless = False
    return found[0], found[1]


def _kinds(image: Tensor, dim: int) -> Tensor:
    length = image.shape[dim]
    after, before = image.narrow(dim, 1, length - 1), image.narrow(dim, 0, length - 1)
    new = (after != before).movedim(dim, 0).flatten(1).any(1).tolist()
    return torch.tensor([0, *new], device=image.device).long().cumsum(0)


def _first_of(image: Tensor, lines: Sequence[Tensor]) -> Tensor:
    """One line of each kind."""
    for dim, kinds in enumerate(lines, 2):
        first = torch.searchsorted(kinds, torch.arange(int(kinds[-1]) + 1, device=kinds.device))
        image = image.index_select(dim, first)
    return image


def _spread(images: Tensor, lines: Sequence[Tensor]) -> Tensor:
    """All lines again; images come as (anything, rows, columns)."""
    return images.index_select(1, lines[0]).index_select(2, lines[1])


def _kinds_of_positions(lines: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """One for each kind of position (rows) and each position of that kind (columns), else zero."""
    rows, columns = lines
    wide = int(columns[-1]) + 1
    which = (rows[:, None] * wide + columns).flatten()
    return F.one_hot(which, (int(rows[-1]) + 1) * wide).t().to(dtype)
