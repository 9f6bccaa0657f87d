"""One run of a model in eval mode, written down, and what can be told from it about its layers."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..compaction.record.recorder import recording
from ..compaction.record.tape import Step, Tape, mark_outputs
from ..compaction.verify import double, inputs_like, run
from ..errors import SynflowError

__all__ = ["RecordedRun", "record"]


@dataclass(frozen=True)
class RecordedRun:
    """The steps of a run, by what they made and by what they read; how often each tensor was read; the precision in
    which the model ran; the numbers of parameters and buffers by name."""

    tape: Tape
    makers: dict[int, Step]
    readers: dict[int, Step]
    reads: Counter[int]
    dtype: torch.dtype
    names: dict[str, int]

    def alone(self, model: nn.Module, path: str) -> bool:
        """Weights of its own, read once: what other places read, too, can't be changed for one of them."""
        module = model.get_submodule(path)
        own = [f"{path}.{name}".removeprefix(".") for name, _ in module.named_parameters(recurse=False)]
        hooked = module._forward_hooks or module._forward_pre_hooks
        return not hooked and all(name in self.names and self.reads[self.names[name]] == 1 for name in own)

    def reader(self, number: int) -> Step | None:
        """The one step that reads a tensor; None if several do, or none, or the model returns it."""
        if self.reads[number] != 1 or number in self.tape.outputs:
            return None
        return self.readers[number]


def record(model: nn.Module, example: Any) -> RecordedRun:
    """Run a copy of a model on the example and write down what it does."""
    problem: Exception | None = None
    for dtype in (torch.float64, torch.float32):  # some models have operations in single precision only
        work, tape = double(copy.deepcopy(model), dtype), Tape()
        try:
            with recording(work, tape, training=False):
                mark_outputs(tape, run(work, inputs_like(example, None, 1, dtype), training=False))
        except Exception as cause:
            problem = problem or cause
        else:
            reads = Counter(number for step in tape.steps for number in step.inputs)
            reads.update(tape.outputs)
            makers = {number: step for step in tape.steps for number in step.outputs}
            readers = {number: step for step in tape.steps for number in step.inputs}
            return RecordedRun(tape, makers, readers, reads, dtype, {name: n for n, name in tape.leaves.items()})
    raise SynflowError(
        f"{type(model).__name__} does not run on the example: {type(problem).__name__}: {problem}; "
        "pass inputs that the model takes, a tuple for several or a dict for named ones"
    ) from problem
