"""Whole numbers that modules remember, followed from the attribute to the dimension of a tensor that gets that size.

While a model is recorded, its integers are `Size`s, which know the attribute that they come from. So the call that
reshapes, cuts or makes a tensor shows which attributes are sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from ...support.nested import leaves
from ...support.private_torch import ConvNd, NormBase

# Modules whose own sizes follow from their weights; see `surgery`.
PLAIN = (ConvNd, NormBase, nn.Linear, nn.Embedding, nn.RNNBase, nn.PReLU, nn.MultiheadAttention)
# For functions that take the sizes of the result, the position of the first one.
_SHAPED = {
    **dict.fromkeys(("view", "reshape", "expand", "broadcast_to", "new_zeros", "new_ones", "new_empty", "new_full"), 1),
    **dict.fromkeys(("zeros", "ones", "empty", "full", "rand", "randn"), 0),
}


class Attribute(NamedTuple):
    """An attribute of a module; `place` is the index in a tuple."""

    path: str
    name: str
    place: int | None = None


class Size(int):
    """An integer that knows its attribute; what is computed from one is a plain integer again."""

    attribute: Attribute


@contextlib.contextmanager
def tagged(model: nn.Module) -> Iterator[None]:
    """Within it, attributes of modules other than plain layers that are integers, or tuples of them, are `Size`s."""
    own = [(path, vars(module)) for path, module in model.named_modules() if not isinstance(module, PLAIN)]
    for path, values in own:
        for name, value in list(values.items()):
            if name.startswith("_"):
                continue
            if type(value) is int:
                values[name] = _size(value, Attribute(path, name))
            elif type(value) is tuple and value and all(type(n) is int for n in value):
                values[name] = tuple(_size(n, Attribute(path, name, place)) for place, n in enumerate(value))
    try:
        yield
    finally:
        for _, values in own:
            for name, value in values.items():
                if isinstance(value, Size):
                    values[name] = int(value)
                elif type(value) is tuple and any(isinstance(n, Size) for n in value):
                    values[name] = tuple(map(int, value))


def _size(value: int, attribute: Attribute) -> Size:
    size = Size(value)
    size.attribute = attribute
    return size


def sizes_in(tree: Any) -> list[Size]:
    """The arguments of a call that come from attributes."""
    given = [(leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else leaf for leaf in leaves(tree)]
    return [leaf for leaf in leaves(given) if isinstance(leaf, Size)]


def asked_sizes(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: list[Tensor]
) -> Iterable[tuple[Tensor, int, Any]]:
    """The sizes that a call was given: each as a tensor that it made, the dimension, and the argument."""
    given = [*args, *kwargs.values()]
    if name in _SHAPED and made:
        sizes = leaves(given[_SHAPED[name] :])
        return [(made[0], dim, size) for dim, size in enumerate(sizes[: made[0].dim()])]
    if name == "unflatten" and made:
        sizes = leaves(given[2:])
        first = given[1] if given[1] >= 0 else made[0].dim() + given[1] + 1 - len(sizes)
        return [(made[0], first + place, size) for place, size in enumerate(sizes)]
    if name in ("split", "split_with_sizes") and made:
        dim = given[2] if len(given) > 2 else 0
        sizes = list(given[1]) if isinstance(given[1], list | tuple) else [given[1]] * len(made)
        return [(part, dim % part.dim(), n) for part, n in zip(made, sizes, strict=True) if part.shape[dim] == n]
    return []
