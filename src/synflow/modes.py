"""A torch function mode that an interrupt cannot leave behind."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class SafeMode(TorchFunctionMode):
    """Leaves torch's stack of modes as deep as it was, even where Ctrl-C struck inside torch's own bookkeeping."""

    def __init__(self) -> None:
        super().__init__()
        self._depths: list[int] = []

    def __enter__(self) -> Any:
        self._depths.append(torch._C._len_torch_function_stack())
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pop_modes(self._depths.pop())


def pop_modes(depth: int) -> None:
    """Bring torch's stack of modes back to a depth."""
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()
