"""Comparisons and selections: the flow has no values to decide by, so whatever may be chosen counts.

The answer to a comparison is a `Choice`. A choice between two sides is their sum; used as a number it is a gate, one
where flow arrives. What sorts or selects (`topk`, `argmax`) takes positions in turn, the same at every step of pruning,
so that every expert behind a router is reached, if there are positions enough.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...support.nested import leaves, mapped
from ..dispatch import CHOICE, RULES, Function, Rule, active_mode, composite, stand_in
from ..tensor import BLOCKING, Choice, Flow, unblocking
from .basic import add, at_one, by_name, homogeneous, product, rearranged

# Multiples of the golden section, modulo one, are the most evenly spread.
GOLDEN = (math.sqrt(5) - 1) / 2


gate_at_one = stand_in(lambda x, *_, **__: at_one(x))


def compare(function: Function, *args: Any, **kwargs: Any) -> Choice:
    """A question about the values of flows; and, or, not of such questions: either answer, anywhere."""
    given = leaves((args, kwargs))
    shape = torch.broadcast_shapes(*(leaf.shape for leaf in given if isinstance(leaf, Tensor)))
    reads = [leaf.read if isinstance(leaf, Choice) else leaf for leaf in given if isinstance(leaf, Flow)]
    read = reads[0] if len(reads) == 1 else add(torch.add, *reads[:2])
    choice = torch.ones(shape, dtype=torch.bool, device=read.device).as_subclass(Choice)
    choice.read = rearranged(torch.broadcast_to, read, shape)
    return choice


def both_true(function: Function, first: Any, second: Any) -> Choice:
    """and: true only where each may be."""
    choice = compare(function, first, second)
    choice.logical_and_(first.as_subclass(Tensor)).logical_and_(second.as_subclass(Tensor))
    return choice


def reshaped_choice(function: Function, choice: Any, *args: Any, **kwargs: Any) -> Any:
    """Reshaping and indexing of a choice; what is indexed by one is taken where it may be true."""
    if not isinstance(choice, Choice):
        args = tuple(leaf.as_subclass(Tensor) if isinstance(leaf, Choice) else leaf for leaf in args)
        return rearranged(function, choice, *args, **kwargs) if isinstance(choice, Flow) else function(choice, *args)
    result = function(choice.as_subclass(Tensor), *args, **kwargs).as_subclass(Choice)
    result.read = rearranged(function, choice.read, *args, **kwargs)
    return result


def either_side(function: Function, condition: Any, first: Any = None, second: Any = None) -> Any:
    """where: the sum of both sides, blocking constants as zero; between two constants a gate."""
    if not isinstance(condition, Choice):
        condition, first = first, condition  # x.where(condition, y)
    may, read = condition.as_subclass(Tensor), condition.read
    if first is None:
        return torch.where(may)
    first, second = (s if isinstance(s, Flow) else _spread(s, read, may.shape) for s in (first, second))
    if not isinstance(first, Flow) and not isinstance(second, Flow):
        return product(torch.mul, gate_at_one(function, read), torch.maximum(first, second))
    if not bool(may.all()):
        first = homogeneous(torch.where, may, first, torch.zeros((), dtype=read.dtype, device=read.device))
    return add(torch.add, first, second)


def _spread(side: Any, like: Tensor, shape: torch.Size) -> Tensor:
    """A constant side: absolute, zero where it blocks, in the shape of the choice."""
    constant = unblocking(torch.as_tensor(side, device=like.device).to(like.dtype)).abs()
    return constant.expand(torch.broadcast_shapes(constant.shape, shape))


@composite
def set_by_choice(function: Function, target: Any, index: Any, value: Any) -> None:
    """`target[choice] = value`: what was there counts as well."""
    index = tuple(leaf.as_subclass(Tensor) if isinstance(leaf, Choice) else leaf for leaf in leaves(index))
    if isinstance(value, (int, float)):
        value = 0.0 if value <= BLOCKING else value
    target[index] = target[index] + value


def turns(shape: torch.Size, dim: int, number: int, device: torch.device) -> Tensor:
    """Positions along a dimension, taken in turn: 0, 1, .. for the first row, and so on round for the next ones."""
    size, rest = shape[dim], [*shape[:dim], *shape[dim:][1:]]
    positions = torch.arange(math.prod(rest) * number, device=device) % max(size, 1)
    return positions.reshape(*rest, number).movedim(-1, dim)


def even_order(size: int, device: torch.device) -> Tensor:
    """All positions: the first, the last, and then such that the first few lie evenly, however many are taken.

    >>> even_order(10, torch.device("cpu"))
    tensor([0, 9, 5, 2, 7, 4, 1, 6, 3, 8])
    """
    order = (torch.arange(size, dtype=torch.float64) * GOLDEN % 1).argsort()
    return torch.cat([order[:1], order[order == size - 1], order[1:][order[1:] != size - 1]])[:size].to(device)


@lru_cache(maxsize=64)
def spread(size: int, number: int) -> Tensor:
    """Some positions of many, ascending: half of them evenly from the first to the last, half closer towards the end.

    A detector's anchors lie side by side, each feature map a quarter as large as the one before, down to a single
    cell; so distances from the end that grow by a factor reach every map.

    >>> spread(1000, 12)
    tensor([  0, 199, 399, 599, 610, 684, 799, 901, 969, 991, 997, 999])
    """
    late = number // 2
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[torch.arange(number - late) * (size - 1) // max(number - late - 1, 1)] = True
    chosen[size - (size ** (torch.arange(late, dtype=torch.float64) / late)).long()] = True
    others = even_order(size, chosen.device)
    chosen[others[~chosen[others]][: number - int(chosen.sum())]] = True  # in place of those that were met twice
    return chosen.nonzero().flatten()


def select(function: Function, x: Flow, k: int = 1, dim: int = -1, *_: Any, **named: Any) -> Any:
    """topk: the flow at k positions in turn; if all rows together take fewer than there are, these are spread."""
    axis, number = dim % max(x.dim(), 1), named.get("k", k)
    indices = turns(x.shape, axis, number, x.device)
    size, total = x.shape[axis] if x.dim() else 1, indices.numel()
    if 1 < total < size:
        indices = spread(size, total).to(x.device)[indices]
    return torch.return_types.topk((rearranged(torch.gather, x, axis, indices), indices))


def position(function: Function, x: Flow, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """argmax and argmin: positions in turn."""
    if dim is None:
        return torch.zeros((), dtype=torch.long, device=x.device)
    indices = turns(x.shape, dim % x.dim(), 1, x.device)
    return indices if keepdim else indices.squeeze(dim)


def order(function: Function, x: Flow, *args: Any, **named: Any) -> Any:
    """sort and argsort: whatever comes first may, so the first few are spread, and from row to row one further on."""
    whole = [arg for arg in args if not isinstance(arg, bool)]
    axis = named.get("dim", whole[0] if whole else -1) % max(x.dim(), 1)
    size = x.shape[axis] if x.dim() else 1
    along = even_order(size, x.device).reshape([-1, *[1] * (x.dim() - 1 - axis)] if x.dim() else [])
    indices = (turns(x.shape, axis, 1, x.device) + along) % max(size, 1) if x.dim() else along
    if function.__name__ == "argsort":
        return indices
    return torch.return_types.sort((rearranged(torch.gather, x, axis, indices), indices))


def statistic(function: Function, x: Flow, *args: Any, **named: Any) -> Any:
    """median, quantile, kthvalue: any entry may be the one, so the mean."""
    first = {"kthvalue": "k ", "quantile": "q ", "nanquantile": "q "}.get(function.__name__, "")
    given = by_name(first + "dim keepdim", args, named)
    dim, keepdim = given.get("dim"), given.get("keepdim", False)
    if dim is None and function.__name__ != "kthvalue":
        return homogeneous(torch.mean, x)
    mean = homogeneous(torch.mean, x, -1 if dim is None else dim, keepdim)
    where = position(function, x, -1 if dim is None else dim, keepdim)
    return mean if "quantile" in function.__name__ else torch.return_types.median((mean, where))


def cast_choice(function: Function, choice: Choice, *args: Any, **kwargs: Any) -> Any:
    """A choice as a number is a gate; as a whole number it counts where it may be true."""
    kinds = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.dtype)]
    if kinds and kinds[0] == torch.bool:
        return choice
    if function.__name__ in ("long", "int") or (kinds and not kinds[0].is_floating_point):
        return function(choice.as_subclass(Tensor), *args, **kwargs)
    return gate_at_one(function, choice.read)


def with_choices(name: str, function: Function, args: Any, kwargs: Any) -> Any:
    """An operation that has a choice among its arguments, by a rule for that or with a gate in its place."""
    rule = CHOICES.get(name) or (reshaped_choice if RULES.get(name) is rearranged else None)
    if rule is not None:
        return rule(function, *args, **kwargs)
    args, kwargs = mapped(
        lambda leaf: gate_at_one(function, leaf.read) if isinstance(leaf, Choice) else leaf, (args, kwargs)
    )
    return active_mode().by_rule(name, function, args, kwargs)


_COMPARISONS = "eq ne gt ge lt le isclose signbit bool logical_not logical_and logical_or logical_xor"

CHOICES: dict[str, Rule] = {
    **dict.fromkeys("logical_not logical_or logical_xor".split(), compare),
    **dict.fromkeys("to type float double long int bool type_as".split(), cast_choice),
    "logical_and": both_true,
    "where": either_side,
    # What was there counts, and what is filled in.
    "masked_fill": lambda _, x, mask, value: either_side(torch.where, mask, value, x),
    "__setitem__": set_by_choice,
    "nonzero": lambda function, choice, *args, **named: function(choice.as_subclass(Tensor), *args, **named),
}

TABLE: dict[str, Rule] = {
    CHOICE: with_choices,
    **dict.fromkeys(_COMPARISONS.split(), compare),
    # A flow is finite.
    **dict.fromkeys(
        "isnan isinf isfinite isposinf isneginf".split(),
        lambda function, x: torch.full(x.shape, function.__name__ == "isfinite", device=x.device),
    ),
    # A flow may arrive anywhere.
    **dict.fromkeys(
        "nonzero argwhere count_nonzero".split(),
        lambda function, x, *args, **named: function(torch.ones(x.shape, device=x.device), *args, **named),
    ),
    **dict.fromkeys("argmax argmin".split(), position),
    **dict.fromkeys("sort argsort".split(), order),
    **dict.fromkeys("median nanmedian kthvalue mode quantile nanquantile".split(), statistic),
    **dict.fromkeys("exp exp2 expm1".split(), gate_at_one),
    "topk": select,
    "multinomial": lambda _, x, num_samples, *__, **___: turns(x.shape, x.dim() - 1, num_samples, x.device),
}
