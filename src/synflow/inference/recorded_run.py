"""The recording of one run of a model in eval mode, and questions about its layers that it answers."""

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


@dataclass(frozen=True)
class RecordedRun:
    """The steps of a run, how often each tensor was read or returned, and the precision in which the model ran."""

    tape: Tape
    reads: Counter[int]
    dtype: torch.dtype

    def alone(self, model: nn.Module, path: str) -> bool:
        """Whether a layer's weights are its own and read once: shared weights can't be changed for one reader."""
        module = model.get_submodule(path)
        own = {f"{path}.{name}".removeprefix(".") for name, _ in module.named_parameters(recurse=False)}
        once = {name for number, name in self.tape.leaves.items() if self.reads[number] == 1}
        return not module._forward_hooks and not module._forward_pre_hooks and own <= once

    def reader(self, number: int) -> Step | None:
        """The one step that reads a tensor; None if several do, or none, or the model returns it."""
        if self.reads[number] != 1 or number in self.tape.outputs:
            return None
        return next(step for step in self.tape.steps if number in step.inputs)


def record(model: nn.Module, example: Any) -> RecordedRun:
    """Run a copy of a model on the example and record its operations."""
    problem: Exception | None = None
    for dtype in (torch.float64, torch.float32):  # some models have operations in single precision only
        work, tape = double(copy.deepcopy(model), dtype), Tape()
        try:
            with recording(work, tape, training=False):
                mark_outputs(tape, run(work, inputs_like(example, None, dtype), training=False))
        except Exception as cause:
            problem = problem or cause
        else:
            read = (number for step in tape.steps for number in step.inputs)
            return RecordedRun(tape, Counter([*read, *tape.outputs]), dtype)
    raise SynflowError(
        f"{type(model).__name__} does not run on the example: {type(problem).__name__}: {problem}; "
        "pass inputs that the model takes, a tuple for several or a dict for named ones"
    ) from problem
