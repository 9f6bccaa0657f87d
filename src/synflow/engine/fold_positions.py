"""Positions of an image with identical receptive fields are computed once.

The example is an image of ones, and a convolution of a constant image is constant except for a border, which grows by
a pixel per layer. So a flow may be folded: `data` has one row and one column per kind, and `spread` gives the kind of
each row and column of the image. Windows (convolutions, pooling) slide over an image without its repeated lines; sums
intersect the kinds of their terms; any other operation unfolds the flow first. The gradient of a kind is the sum over
its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..flow.dispatch import RULES, has_user_rule
from ..flow.operation_names import ABOUT, ALIASES, RESHAPES_IN_PLACE
from ..flow.passes import ByRule
from ..flow.tensor import Flow, as_flow, flows, read_attribute
from ..support import windows
from ..support.nested import mapped
from .fallbacks import CannotServeError

# For each row and each column of an image its kind: lines of a kind hold the same values.
Spread = tuple[Tensor, Tensor]

# What a folded operation is called with, and how its result is spread.
Folded = tuple[tuple[Any, ...], dict[str, Any], Spread]

# A flow is not folded if more than this share of its positions would remain: that saves less than gathering costs.
WORTH = 0.6

_USUAL = {"stride": 1, "padding": 0, "dilation": 1}
_POOLS = ("max_pool2d", "avg_pool2d")
_POOL_NAMES = ("kernel_size", "stride", "padding")
_CONVOLUTION_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def input_of_ones(shape: Sequence[int], dtype: torch.dtype, device: torch.device, memory: dict[Any, Any]) -> Flow:
    """An image of ones, all of one kind."""
    key = ("fold", tuple(shape[2:]), device)
    if key not in memory:
        memory[key] = tuple(torch.zeros(size, dtype=torch.long, device=device) for size in shape[2:])
    return as_flow(torch.ones(*shape[:2], 1, 1, dtype=dtype, device=device), spread=memory[key])


def spread_of(item: Any) -> Spread | None:
    """How a folded flow is spread; None for anything else."""
    return item.spread if isinstance(item, Flow) else None


def unfolded(item: Any) -> Any:
    """The same flow at every position; what is not folded stays as it is."""
    if (spread := spread_of(item)) is None:
        return item
    return as_flow(_picked(item.as_subclass(Tensor), *spread), item.exponent, item.degrees)


def outline(item: Any) -> Any:
    """In place of a folded flow, a tensor without memory of its own that has the shape of the unfolded one."""
    if (spread := spread_of(item)) is None:
        return item
    shape = (*item.shape[:2], *(len(kinds) for kinds in spread))
    return torch.zeros((), dtype=item.dtype, device=item.device).expand(shape)


def operation(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rule: ByRule,
    memory: dict[Any, Any],
) -> Any:
    """An operation on flows of which some are folded; NotImplemented where none is."""
    if not any(flow.spread is not None for flow in flows((args, kwargs))):
        return NotImplemented
    if name in ABOUT or name == "__get__":
        answer = function(*mapped(outline, args), **mapped(outline, kwargs))
        if not isinstance(answer, Tensor) or name in ABOUT:
            return answer
        return read_attribute(function, mapped(unfolded, args), kwargs)
    if name in RESHAPES_IN_PLACE:
        raise CannotServeError(f"{name} changes the shape of a folded image in place")
    name = ALIASES.get(name, name)
    # An in-place sum gets another shape here; the flow of the whole network is compared once with the plain pass.
    base = name[:-1] if name in ("add_", "mul_") else name
    stem = base.removesuffix("_")
    if getattr(RULES.get(stem), "keeps_positions", False) and not has_user_rule(stem):
        return rule(name, function, args, kwargs)
    how = None if has_user_rule(base) else folded(base, args, kwargs, memory)
    if how is None:
        return rule(name, function, *mapped(unfolded, (args, kwargs)))
    result = rule(base, getattr(torch, base, function) if base != name else function, how[0], how[1])
    if isinstance(result, Flow):
        result.spread = how[2]
    return result


def folded(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], memory: dict[Any, Any]) -> Folded | None:
    """How to call an operation on folded flows; None where they have to be unfolded first."""
    if name == "conv2d":
        return _convolution(args, kwargs, memory)
    if name in _POOLS:
        return _pooling(args, kwargs, memory)
    if name == "batch_norm" and (spread := spread_of(args[0])) is not None:
        return args, kwargs, spread
    if name in ("add", "mul") and len(args) == 2 and not kwargs:
        return _joined(args, memory)
    if name == "cat" and args and kwargs.get("dim", args[1] if len(args) > 1 else 0) == 1:
        every = all(spread_of(item) is not None for item in args[0])
        joined = _joined(tuple(args[0]), memory) if every else None
        return None if joined is None else ((list(joined[0]), *args[1:]), kwargs, joined[2])
    return None


def _convolution(args: tuple[Any, ...], kwargs: dict[str, Any], memory: dict[Any, Any]) -> Folded | None:
    given = {**dict(zip(_CONVOLUTION_NAMES, args, strict=False)), **kwargs}
    x, weight = given["input"], given["weight"]
    if spread_of(x) is None or isinstance(given.get("padding"), str):
        return None
    kernel = tuple(weight.shape[2:])
    stride, padding, dilation = (_pair(given.get(key, usual)) for key, usual in _USUAL.items())
    found = _shortened(x, kernel, stride, padding, dilation, memory)
    if found is None:
        return None
    return (found[0], weight, given.get("bias"), stride, found[1], dilation, given.get("groups", 1)), {}, found[2]


def _pooling(args: tuple[Any, ...], kwargs: dict[str, Any], memory: dict[Any, Any]) -> Folded | None:
    x = args[0]
    given = {**dict(zip(_POOL_NAMES, args[1:], strict=False)), **kwargs}
    if len(args) > 4 or spread_of(x) is None:
        return None
    unusual = {key: value for key, value in given.items() if key not in _POOL_NAMES}
    usual = {"dilation": 1, "ceil_mode": False, "return_indices": False, "count_include_pad": True}
    if any(key not in usual or value != usual[key] for key, value in unusual.items()):
        return None
    kernel = _pair(given["kernel_size"])
    stride = kernel if given.get("stride") in (None, [], ()) else _pair(given["stride"])
    found = _shortened(x, kernel, stride, _pair(given.get("padding", 0)), (1, 1), memory)
    return None if found is None else ((found[0], kernel, stride, found[1]), {}, found[2])


def _shortened(
    x: Flow,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    memory: dict[Any, Any],
) -> tuple[Flow, tuple[int, int], Spread] | None:
    """The image without repeated lines, for a sliding window; its padding; the kinds of the windows."""
    assert x.spread is not None
    lines = []
    for kinds, size, *how in zip(x.spread, x.shape[2:], kernel, stride, padding, dilation, strict=True):
        key = ("fold", id(kinds), size, *how)
        if key not in memory:
            memory[key] = (kinds, _shorter(kinds, size, *how))  # kinds are held, so that their id stays theirs
        lines.append(memory[key][1])
    (rows, above, down), (columns, beside, across) = lines
    if (int(down[-1]) + 1) * (int(across[-1]) + 1) > WORTH * len(down) * len(across):
        return None
    data = _picked(x.as_subclass(Tensor), rows, columns)
    return as_flow(data, x.exponent, x.degrees), (above, beside), (down, across)


def _picked(data: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """An image of some rows and columns of another one; the number after the last stands for a line of zeros."""
    zeros = [int(bool((lines == size).any())) for lines, size in zip((rows, columns), data.shape[2:], strict=True)]
    if any(zeros):
        data = F.pad(data, (0, zeros[1], 0, zeros[0]))
    places = (rows[:, None] * data.shape[3] + columns).flatten()
    return data.flatten(2).index_select(2, places).view(*data.shape[:2], len(rows), len(columns))


def _shorter(
    kinds: Tensor, size: int, width: int, stride: int, padding: int, dilation: int
) -> tuple[Tensor, int, Tensor]:
    """One dimension of an image without the windows whose contents repeat those of the window before.

    Returns the kinds of the lines that stay (`size` stands for a line of zeros), the padding on both sides, and the
    kind of each window.

    >>> _shorter(torch.zeros(6, dtype=torch.long), 1, 3, 1, 1, 1)
    (tensor([0, 0, 0]), 1, tensor([0, 1, 1, 1, 1, 2]))
    """
    given, extent = kinds.cpu().numpy(), dilation * (width - 1) + 1
    count = windows.count(len(given), width, stride, padding, dilation)
    starts = np.arange(count) * stride
    # Dilated windows skip lines, which other windows read: these lines are compared as well.
    seen = _kinds_at(given, size, starts[:, None] + np.arange(extent) - padding)
    new = np.ones(count, dtype=np.bool_)
    new[1:] = (seen[1:] != seen[:-1]).any(1)
    # The lines from the start of a window to the start of its repetition are not needed.
    stays = np.ones((count - 1) * stride + extent, dtype=np.bool_)
    for again in np.flatnonzero(~new):
        stays[(again - 1) * stride : again * stride] = False
    lines = np.flatnonzero(stays) - padding
    inner, which = lines[(lines >= 0) & (lines < len(given))], np.cumsum(new) - 1
    before = int((lines < 0).sum())
    plain = before == padding  # then as many windows fit on the shorter line as stay
    places = given[inner] if plain else _kinds_at(given, size, lines)
    found = (torch.from_numpy(array).to(kinds.device) for array in (places, which))
    return next(found), padding if plain else 0, next(found)


def _kinds_at(kinds: np.ndarray, size: int, places: np.ndarray) -> np.ndarray:
    inside = (places >= 0) & (places < len(kinds))
    return np.where(inside, kinds[places.clip(0, len(kinds) - 1)], size)


def _joined(items: tuple[Any, ...], memory: dict[Any, Any]) -> Folded | None:
    """Things that are added or multiplied, with kinds in common; numbers and single pixels go with any."""
    spreads = [spread for item in items if (spread := spread_of(item)) is not None]
    for item in items:
        image = isinstance(item, Tensor) and spread_of(item) is None
        if image and item.dim() > 0 and (item.dim() != 4 or item.shape[2:] != (1, 1)):
            return None
    common, maps = _common(spreads, memory)
    given, result = iter(maps), []
    for item in items:
        if spread_of(item) is not None:
            data, places = item.as_subclass(Tensor), next(given)
            if places is not None:
                data = _picked(data, *places)
            item = as_flow(data, item.exponent, item.degrees)
        result.append(item)
    return tuple(result), {}, common


def _common(spreads: Sequence[Spread], memory: dict[Any, Any]) -> tuple[Spread, list[Spread | None]]:
    """Kinds that tell apart whatever one of the spreads does, and for each spread where its kinds went."""
    key = ("fold", *(id(kinds) for spread in spreads for kinds in spread))
    if key not in memory:
        if all(kinds is first for spread in spreads for kinds, first in zip(spread, spreads[0], strict=True)):
            memory[key] = (spreads, spreads[0], [None] * len(spreads))
        else:
            found = [_told_apart([spread[dim] for spread in spreads]) for dim in range(2)]
            memory[key] = (spreads, (found[0][0], found[1][0]), list(zip(found[0][1], found[1][1], strict=True)))
    return memory[key][1], memory[key][2]


def _told_apart(lines: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    different, which = torch.unique(torch.stack(lines, 1), dim=0, return_inverse=True)
    return which, list(different.unbind(1))


def _pair(value: Any) -> tuple[int, int]:
    values = [value, value] if isinstance(value, int) else list(value)
    return (values[0], values[-1])
