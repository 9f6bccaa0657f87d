"""Example inputs from shapes: `1x3x224x224`, `1x128:int64`, `input_ids=1x128:int64`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SynflowError

PATTERN = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>\d{1,12}(?:x\d{1,12}){0,15})(?::(?P<dtype>\w+))?")
# The most numbers in an example, 4 GB of float32: more is a typing error, or a malicious file.
MOST_ELEMENTS = 2**30
DTYPES = {
    name: getattr(torch, name) for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
}


def example_from(texts: Sequence[str], vocabulary: int = 2) -> Any:
    """A tensor, a tuple or a dict of tensors: ones, or token ids below the size of the vocabulary.

    >>> example_from(["2x3"]).shape
    torch.Size([2, 3])
    >>> list(example_from(["input_ids=1x4:int64", "pixels=1x3x2x2"]))
    ['input_ids', 'pixels']
    """
    parsed = [_parsed(text, vocabulary) for text in texts]
    named = [name for name, _ in parsed if name is not None]
    if named and len(named) < len(parsed):
        raise SynflowError("--input: name all of the inputs or none of them, as in --input ids=1x8:int64 --input x=1x3")
    if named:
        return dict(parsed)
    tensors = tuple(tensor for _, tensor in parsed)
    return tensors[0] if len(tensors) == 1 else tensors


def shape_of(text: str) -> tuple[int, ...]:
    """The sizes in a shape such as 1x3x32x32."""
    return _fields(text)[1]


def _fields(text: str) -> tuple[str | None, tuple[int, ...], str]:
    """The name, the sizes and the type in the description of an input."""
    found = PATTERN.fullmatch(text.strip())
    if found is None:
        raise SynflowError(
            f"--input {text!r:.80} is no shape; write sizes with x between them, batch first, such as 1x3x224x224, "
            "1x128:int64 for token ids, or name=1x128 for a keyword argument"
        )
    sizes = tuple(int(size) for size in found["shape"].split("x"))
    if math.prod(sizes) > MOST_ELEMENTS:
        raise SynflowError(
            f"--input {text!r} asks for {math.prod(sizes):,} numbers; an example has at most {MOST_ELEMENTS:,}; a "
            "batch of one is enough"
        )
    if 0 in sizes:
        raise SynflowError(f"--input {text!r} has a size of zero; the smallest batch is 1")
    return found["name"], sizes, found["dtype"] or "float32"


def describe(example: Any) -> list[str]:
    """The texts that `example_from` makes an example of the same shapes from.

    >>> describe({"ids": torch.zeros(1, 8, dtype=torch.int64)}), describe(torch.ones(1, 3))
    (['ids=1x8:int64'], ['1x3'])
    """
    if isinstance(example, dict):
        return [f"{name}={_text(value)}" for name, value in example.items() if isinstance(value, Tensor)]
    items = example if isinstance(example, tuple | list) else [example]
    return [_text(value) for value in items if isinstance(value, Tensor)]


def first_linear(model: nn.Module) -> Tensor | None:
    """An input for a model whose first layer with weights is linear; None for others: their input shape is unknown."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return torch.ones(1, module.in_features)
        if next(module.parameters(recurse=False), None) is not None:
            return None
    return None


def vocabulary(model: nn.Module) -> int:
    """The number of token ids that every embedding of a model accepts."""
    sizes = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    stated = getattr(getattr(model, "config", None), "vocab_size", None)
    return stated if isinstance(stated, int) and stated > 0 else min(sizes, default=2)


def _parsed(text: str, vocabulary: int) -> tuple[str | None, Tensor]:
    name, sizes, dtype = _fields(text)
    if dtype not in DTYPES:
        raise SynflowError(f"--input {text!r}: no type {dtype!r}; choose from {', '.join(DTYPES)}")
    if dtype.startswith("int"):
        low = 3 if vocabulary > 8 else 0  # the first few ids are padding and other special tokens in most vocabularies
        ids = low + torch.arange(math.prod(sizes)) % (vocabulary - low)
        return name, ids.reshape(sizes).to(DTYPES[dtype])
    return name, torch.ones(sizes, dtype=DTYPES[dtype])


def _text(value: Tensor) -> str:
    dtype = str(value.dtype).removeprefix("torch.")
    return "x".join(map(str, value.shape)) + ("" if dtype == "float32" else f":{dtype}")
