"""Functions in Python files that the user names, as `path/to/file.py:function`: models, scores, schedules.

Such a file runs when the user names it, on the command line, in Python or in a sweep; a file named in a stored folder
never runs by itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import SynflowError

# Seeds are multiplied to derive one per epoch and round, and the products must stay below 2^63.
MOST_SEEDS = 2**32


def is_file(spec: str) -> bool:
    """Whether a name stands for a function in a Python file.

    >>> is_file("net.py:make"), is_file("timm:resnet18")
    (True, False)
    """
    path, colon, _ = spec.rpartition(":")
    return bool(colon) and path.endswith(".py")


def name_or_function(spec: str) -> Any:
    """The function if the name stands for one in a file, else the name itself."""
    return function_in(spec) if is_file(spec) else spec


def function_in(spec: str) -> Callable[..., Any]:
    """Run a file and return the function of the given name."""
    name, _, wanted = spec.rpartition(":")
    path = _file(name)
    module_spec = importlib.util.spec_from_file_location(f"synflow_own_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except Exception as cause:
        raise SynflowError(f"{path} fails when it is imported: {type(cause).__name__}: {one_line(cause)}") from cause
    function: Any = getattr(module, wanted, None)
    if not callable(function):
        found = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SynflowError(f"{path} has no function {wanted!r}; it has {', '.join(found[:8]) or 'none at all'}")
    return function  # type: ignore[no-any-return]


def digest_of(spec: str) -> str:
    """A checksum of the file of a function, which distinguishes versions of the file."""
    return hashlib.sha256(_file(spec.rpartition(":")[0]).read_bytes()).hexdigest()[:16]


def one_line(cause: BaseException) -> str:
    """An error's message in one line."""
    text = " ".join(str(cause).split())
    return text if len(text) <= 300 else text[:297] + "..."


@contextmanager
def failing(what: str, way_out: str = "") -> Iterator[None]:
    """Turn any error of foreign code inside the block into one that says what failed."""
    try:
        yield
    except SynflowError:
        raise
    except Exception as cause:
        raise SynflowError(f"{what}: {type(cause).__name__}: {one_line(cause)}{way_out}") from cause


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise SynflowError(f"{path}: there is no such file; write path/to/file.py:function")
    return path
