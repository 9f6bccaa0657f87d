"""Products of a weight with few columns, in the order that reads the weight once."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .compiled import loops_for
from .custom_ops import operation

# Products with fewer columns are faster in an order of their own,
NARROW = 12
# and with so many by compiled loops; with one, torch's are as fast.
COLUMNS = range(2, 5)
# Smaller weights are read by one thread.
LARGE = 1 << 18


def through(weight: Tensor, seen: Tensor, compiled: bool) -> Tensor:
    """`weight @ seen`; very few columns are read along with the weights if they lie as those do."""
    if compiled and seen.shape[1] in COLUMNS:
        return _through(weight, seen)
    return weight @ (seen.t().contiguous().t() if seen.shape[1] < NARROW else seen)


def back(weight: Tensor, sent: Tensor, compiled: bool) -> Tensor:
    """`weight.T @ sent`; with few columns in an order that reads a large weight once, on two threads."""
    rows, columns = weight.shape
    if compiled and sent.shape[1] in COLUMNS:
        return _back(weight, sent)
    if sent.shape[1] > NARROW:
        return weight.t() @ sent
    if columns % 2 or weight.numel() < LARGE:
        return (sent.t() @ weight).t()
    halves = torch.bmm(sent.t().expand(2, -1, rows), weight.view(rows, 2, columns // 2).transpose(0, 1))
    return halves.transpose(1, 2).reshape(columns, -1)


def _compiled_through(weight: Tensor, seen: Tensor) -> Tensor:
    loops = loops_for(weight)
    if loops is None:
        return weight @ seen
    columns = np.zeros((4, len(seen)), seen.numpy().dtype)
    columns[: seen.shape[1]] = seen.t().numpy()
    found = weight.new_empty(len(weight), seen.shape[1])
    loops.few_through(weight.contiguous().numpy(), columns, found.numpy())
    return found


def _compiled_back(weight: Tensor, sent: Tensor) -> Tensor:
    loops = loops_for(weight)
    if loops is None:
        return weight.t() @ sent
    found = weight.new_empty(weight.shape[1], sent.shape[1])
    loops.few_back(weight.contiguous().numpy(), F.pad(sent, (0, 4 - sent.shape[1])).contiguous().numpy(), found.numpy())
    return found


_through = operation("through(Tensor weight, Tensor seen) -> Tensor", _compiled_through)
_back = operation("back(Tensor weight, Tensor sent) -> Tensor", _compiled_back)
