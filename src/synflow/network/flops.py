"""The number of floating-point operations of a forward pass, counted, not timed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from .private_copy import arguments, run_untouched


def flops(model: nn.Module, example: Any) -> int:
    """Floating-point operations of one forward pass in eval mode, two for each multiply-add.

    >>> flops(nn.Linear(3, 2), torch.ones(1, 3))
    12
    """

    def count(twin: nn.Module) -> int:
        args, kwargs = arguments(example)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            twin.eval()(*args, **kwargs)
        return int(counter.get_total_flops())

    return run_untouched(model, count)
