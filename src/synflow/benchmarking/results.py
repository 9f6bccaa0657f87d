"""The results of `bench`: as a table, as JSON, as a plot."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import need
from ..support.atomic_files import replacing, write_bytes
from ..support.numbers import bytes_text, seconds_text


@dataclass(frozen=True)
class Timing:
    """Seconds per run: median and quartiles; `ratio` is how many times faster than dense."""

    task: str
    batch: int
    variant: str
    seconds: float
    low: float
    high: float
    ratio: float


@dataclass(frozen=True)
class Size:
    """How large a variant is; operations are those of one example's forward pass."""

    variant: str
    parameters: int
    nonzero: int
    flops: int
    file_bytes: int
    onnx_bytes: int | None = None


@dataclass(frozen=True)
class Benchmark:
    """Timings and sizes of each variant; `peaks` is the memory, by task and variant, on top of the weights."""

    timings: tuple[Timing, ...]
    sizes: tuple[Size, ...]
    peaks: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any]

    def ratio(self, task: str, batch: int, variant: str = "compact") -> float:
        """The speed of a variant relative to the dense network."""
        return next(t.ratio for t in self.timings if (t.task, t.batch, t.variant) == (task, batch, variant))

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """All figures as JSON text, also written to a file if `path` is given."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, f"{text}\n".encode())
        return text

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Bars of the times relative to dense, one group per task and batch size, as an image file."""
        figures = need("matplotlib.figure", extra="plots")
        groups = list(dict.fromkeys((t.task, t.batch) for t in self.timings))
        variants = list(dict.fromkeys(t.variant for t in self.timings))
        figure = figures.Figure(figsize=(4 + 1.3 * len(groups), 4), layout="constrained")
        axes = figure.subplots()
        members = {group: [t.variant for t in self.timings if (t.task, t.batch) == group] for group in groups}
        width = 0.8 / max(map(len, members.values()))
        for variant in variants:
            bars = [t for t in self.timings if t.variant == variant]
            below = [(1 - t.low / t.seconds) / t.ratio for t in bars]
            above = [(t.high / t.seconds - 1) / t.ratio for t in bars]
            places = [(groups.index((t.task, t.batch)), members[t.task, t.batch]) for t in bars]
            x = [group + (names.index(variant) - (len(names) - 1) / 2) * width for group, names in places]
            axes.bar(x, [1 / t.ratio for t in bars], width * 0.95, yerr=[below, above], label=variant, capsize=2)
        axes.set_xticks(range(len(groups)), [f"{task}\nbatch {batch}" for task, batch in groups])
        axes.set_ylabel("time, dense = 1")
        figure.legend(loc="outside right upper")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            figure.savefig(temporary)

    def __str__(self) -> str:
        wide = max([10, *(len(t.variant) + 2 for t in self.timings)])
        lines = [f"{'':24}{'variant':>{wide}}{'median':>12}{'quartiles':>22}{'faster':>9}"]
        for t in self.timings:
            spread = f"{seconds_text(t.low)} - {seconds_text(t.high)}"
            what = f"{t.task}, batch {t.batch}"
            lines.append(f"{what:24}{t.variant:>{wide}}{seconds_text(t.seconds):>12}{spread:>22}{t.ratio:>8.2f}x")
        lines.append("")
        tasks = list(self.peaks)
        header = f"{'variant':10}{'parameters':>12}{'nonzero':>12}{'MFLOP':>10}{'file':>10}"
        header += "".join(f"{'peak, ' + task:>22}" for task in tasks)
        onnx = any(s.onnx_bytes is not None for s in self.sizes)
        lines.append(header + (f"{'onnx':>10}" if onnx else ""))
        for s in self.sizes:
            line = (
                f"{s.variant:10}{s.parameters:>12,}{s.nonzero:>12,}{s.flops / 1e6:>10.2f}{bytes_text(s.file_bytes):>10}"
            )
            line += "".join(f"{bytes_text(self.peaks[task][s.variant]):>22}" for task in tasks)
            lines.append(line + (f"{bytes_text(s.onnx_bytes or 0):>10}" if onnx else ""))
        lines.append(", ".join(f"{key} {value}" for key, value in self.settings.items()))
        return "\n".join(lines)
