"""The report of a pruned network: layers, proof and plots in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..benchmarking.results import Benchmark
from ..errors import SynflowError
from ..masks.checks import check_any, check_mapping
from ..support.atomic_files import write_bytes
from .comparison import comparison_page
from .facts import Facts, gather
from .page import page

__all__ = ["Report", "report"]


@dataclass(frozen=True)
class Report:
    """A report: `html` is the whole file, `facts` maps names of networks to their figures. Notebooks display it."""

    html: str
    facts: Mapping[str, Facts]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the HTML file and return its path; an old file is replaced atomically.

        >>> import tempfile
        >>> Report("<!doctype html>", {}).save(Path(tempfile.mkdtemp(), "report.html")).name
        'report.html'
        """
        write_bytes(path, self.html.encode())
        return Path(path)

    def _repr_html_(self) -> str:
        # A frame keeps the styles of the report and of the notebook separate.
        frame = "width:100%;height:720px;border:1px solid #8886"
        return f'<iframe title="synflow report" srcdoc="{escape(self.html)}" style="{frame}"></iframe>'


def report(
    model: nn.Module,
    masks: Mapping[str, Tensor] | Mapping[str, Mapping[str, Tensor]],
    example: Any,
    *,
    title: str | None = None,
    small: nn.Module | None = None,
    benchmark: Benchmark | None = None,
    command: str | None = None,
) -> Report:
    """A report of a model under masks, or of several sets of masks (a dict of them by name) side by side.

    `small` (from `compact`) and `benchmark` (from `bench`) add their figures to the report of one set of masks.

    >>> import torch, synflow
    >>> net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    >>> masks = synflow.prune(net, torch.ones(1, 10), compression=10)
    >>> report(net, masks, torch.ones(1, 10)).html[:15]
    '<!doctype html>'
    """
    if masks is not None:
        check_mapping(masks)
    check_any(masks, "report on")
    title = None if title is None else str(title)
    if all(isinstance(value, Tensor) for value in masks.values()):
        facts = gather(
            model,
            masks,  # type: ignore[arg-type]
            example,
            title=title,
            compaction=getattr(small, "compaction", None),
            benchmark=benchmark,
            command=command,
        )
        return Report(page(facts), {facts.title: facts})
    if small is not None or benchmark is not None:
        raise SynflowError("small= and benchmark= belong to one set of masks; leave them out of a comparison")
    every = {
        name: gather(model, given, example, title=title or type(model).__name__, command=command)  # type: ignore[arg-type]
        for name, given in masks.items()
    }
    html = comparison_page(every, masks, title=f"{title or type(model).__name__}: comparison")  # type: ignore[arg-type]
    return Report(html, every)
