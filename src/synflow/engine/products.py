"""Products of a flow with a weight, as fast as the machine has them, in the precision of the flow."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.private_torch import onednn_linear

# Half-precision weights are widened this many at a time, so that the same memory is used again and again.
PART = 1 << 20
# With fewer multiplications than this, the call of oneDNN takes longer than the product itself.
SMALL = 1 << 20


def times(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight`."""
    if _suits(x, weight):
        return _by_onednn(x, weight.t())
    total: Tensor | None = None
    for start, part in _widened_parts(weight, x.dtype):
        product = x[..., start : start + len(part)] @ part
        total = product if total is None else total.add_(product)
    assert total is not None
    return total


def times_transposed(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`."""
    if _suits(x, weight):
        return _by_onednn(x, weight)
    products = [F.linear(x, part) for _, part in _widened_parts(weight, x.dtype)]
    return products[0] if len(products) == 1 else torch.cat(products, -1)


def on_columns(weight: Tensor, columns: Tensor) -> Tensor:
    """`weight @ columns`."""
    if _suits(columns.t(), weight):
        return _by_onednn(weight, columns.t())
    products = [part @ columns for _, part in _widened_parts(weight, columns.dtype)]
    return products[0] if len(products) == 1 else torch.cat(products)


def _suits(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is quicker: it reads few lines of x against a large weight two to four times as fast as MKL."""
    kinds = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    lines = x.numel() // max(x.shape[-1], 1) if x.dim() > 1 else 1
    return onednn_linear is not None and kinds and lines > 1 and lines * weight.numel() >= SMALL


def _by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = onednn_linear(x, weight, None, "none", [], "")
    return product


def _widened_parts(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """A weight in another precision, as (first row, rows), a part at a time: larger ones would be fresh memory."""
    step = len(weight) if weight.dtype == dtype else PART // max(weight.shape[1], 1)
    for start in range(0, max(len(weight), 1), max(step, 1)):
        yield start, weight[start : start + max(step, 1)].to(dtype)
