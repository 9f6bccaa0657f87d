"""The speed-up of a compact network on this machine: by a few timings if they are clear, else by a benchmark."""

from __future__ import annotations

import statistics
from typing import Any

from torch import nn

from ..benchmarking.results import Benchmark
from ..benchmarking.run import SHORTEST, bench, clocked
from ..benchmarking.tasks import enlarged, inference_run, training_run
from ..masks.results import Masks

# Dense and compact network are first timed alternately, this many times each.
TURNS = 3
# Measurements of the benchmark that decides close cases; quartiles of seven are stable enough to search by.
REPEATS = 7
# Within this relative distance of the target a few timings cannot decide, so a benchmark does.
NEAR = 0.1

Answer = tuple[float, float, float, Benchmark | None]


class Speed:
    """A dense network, prepared to be timed in turns with compact ones."""

    def __init__(self, model: nn.Module, example: Any, task: str, batch: int) -> None:
        self.model, self.example, self.task, self.batch = model, example, task, batch
        self.inputs = enlarged(example, batch, False)
        self.dense = self._ready(model)
        self.dense()

    def times_faster(self, small: nn.Module, masks: Masks, target: float) -> Answer:
        """Median and range of dense time over compact time; by a benchmark if a few timings cannot decide."""
        ratios = self._ratios(small)
        middle = statistics.median(ratios)
        if abs(middle / target - 1) <= NEAR or min(ratios) <= target <= max(ratios):
            return self.benchmark(small, masks)
        return middle, min(ratios), max(ratios), None

    def benchmark(self, small: nn.Module, masks: Masks) -> Answer:
        """The same by `bench`, which also measures memory and sizes."""
        training = self.task == "training step"
        result = bench(
            self.model, masks, self.example, small=small, repeats=REPEATS, warmup=1, progress=False,
            train_batches=(self.batch,) if training else (), inference_batches=() if training else (self.batch,),
        )  # fmt: skip
        by = {timing.variant: timing for timing in result.timings}
        dense, tiny = by["dense"], by["compact"]
        return tiny.ratio, dense.low / tiny.high, dense.high / tiny.low, result

    def _ratios(self, small: nn.Module) -> list[float]:
        runs = (self.dense, self._ready(small))
        runs[1]()
        many = [max(1, round(SHORTEST / max(clocked(run, 1), 1e-9))) for run in runs]
        turns = [[clocked(run, loops) for run, loops in zip(runs, many, strict=True)] for _ in range(TURNS)]
        return [dense / compact for dense, compact in turns]

    def _ready(self, model: nn.Module) -> Any:
        if self.task == "training step":
            return training_run(model, self.inputs, None, False)
        return inference_run(model, self.inputs, False)
