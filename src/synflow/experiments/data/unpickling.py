"""A reader of the CIFAR pickles that can build dicts, lists, strings, numbers and arrays of bytes, and nothing else."""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synflow.errors import SynflowError

__all__ = ["read_pickle"]


class _Array:
    """What a pickled array leaves: never a numpy object, only its state, checked afterwards."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Type(_Array):
    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code


# Looked up by name in the pickle; nothing else may be, so nothing in it can run.
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): lambda text, *_: str(text).encode("latin1"),  # how Python 3 writes bytes for Python 2
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise SynflowError(f"it asks for {module}.{name}, which a data file has no use for")
        return _KNOWN[module, name]


def read_pickle(data: bytes, name: str) -> dict[str, Any]:
    """The dict in a published CIFAR file; an array in it must hold bytes and becomes a numpy array.

    >>> import os
    >>> read_pickle(pickle.dumps({"data": np.zeros((2, 3), np.uint8)}, protocol=2), "a file")["data"].shape
    (2, 3)
    >>> read_pickle(pickle.dumps({"data": os.system}), "a file")
    Traceback (most recent call last):
    synflow.errors.SynflowError: a file is no CIFAR file: it asks for posix.system, ...
    """
    try:
        found = _Reader(io.BytesIO(data), encoding="latin1").load()
        if not isinstance(found, dict):
            raise SynflowError(f"it holds a {type(found).__name__}, not a dict")
        return {_text(key): _array(value) if isinstance(value, _Array) else value for key, value in found.items()}
    except Exception as cause:
        raise SynflowError(f"{name} is no CIFAR file: {cause}; fetch it again") from cause


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


def _array(array: _Array) -> NDArray[np.uint8]:
    state = array.state
    if not isinstance(state, tuple) or len(state) != 5:
        raise SynflowError("an array in it is not as numpy writes them")
    _, shape, kind, fortran, content = state
    if not isinstance(kind, _Type) or kind.code not in ("u1", "|u1"):
        raise SynflowError("an array in it does not hold bytes")
    raw = content.encode("latin1") if isinstance(content, str) else content
    if not isinstance(raw, bytes) or not isinstance(shape, tuple) or math.prod(shape) != len(raw):
        raise SynflowError("an array in it has another size than its shape says")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
