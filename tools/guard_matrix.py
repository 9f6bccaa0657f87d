"""Prune small networks with every score and `guard=True`, and look for lost paths and dead layers.

The networks are those of `tests/support/zoo.py` and the small ones of `tools/zoo_models.py`. A count below what leaves
a path is raised to that. A layer may die only if the guard names it and the count is below what `synflow.limits` finds.
Rows are kept in a file as they are done; a second run goes on from there. Progress goes to standard error:

    python tools/guard_matrix.py --log runs/guard.jsonl > table.md
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import torch
from torch import Tensor, nn
from tqdm import tqdm
from zoo_models import ENTRIES

import synflow
from synflow.network.private_copy import pytree
from zoo import ZOO

COMPRESSIONS = (100, 1000)
# Architectures with more weights are not small: a run of all scores would take hours.
SMALL = 300_000
# Families of `tools/zoo_models.py` that have small networks, so that no large one is built to find that out.
FAMILIES = "Plain torch", "transformers: "


@dataclass
class Row:
    """What came of a network under a score; `below` says whether fewer weights were asked for than layers need."""

    network: str
    score: str
    compression: int
    weights: int = 0
    kept: int = 0
    wanted: int = 0
    layers: int = 0
    needed: int = 0
    connected: bool = False
    dead: int = 0
    named: int = 0
    below: bool = False
    seconds: float = 0.0
    error: str = ""

    @property
    def good(self) -> bool:
        """Exact, connected, and no layer dead but those that are named because the count is too low for all."""
        allowed = self.named if self.below else 0
        return not self.error and self.connected and self.kept == self.wanted and self.dead == allowed == self.named


@dataclass
class Subject:
    """A model and what every score may ask for."""

    model: nn.Module
    example: Any
    data: list[tuple[Any, Tensor]]
    loss: Callable[[Any, Tensor], Tensor]


def squares(output: Any, _: Tensor) -> Tensor:
    """The mean square of the outputs: a loss for models with outputs of any kind."""
    found = [x for x in pytree.tree_leaves(_unpacked(output)) if isinstance(x, Tensor) and x.is_floating_point()]
    return torch.stack([x.square().mean() for x in found if x.requires_grad and x.dim()]).sum()


def _unpacked(output: Any) -> Any:
    return dict(output) if hasattr(output, "items") else output


def drawn(leaf: Any) -> Any:
    """Random values in the place of an example: noise, or token ids."""
    if not isinstance(leaf, Tensor):
        return leaf
    return torch.randn_like(leaf) if leaf.is_floating_point() else torch.randint_like(leaf, 3, 90)


def subjects() -> Iterator[tuple[str, Callable[[], Subject]]]:
    """The small networks by name."""
    for name, build in ZOO.items():
        yield f"test: {name}", lambda build=build: Subject(*build())  # type: ignore[misc]
    for family, entries in ENTRIES.items():
        if family.startswith(FAMILIES):
            for name, build in entries.items():
                if not any(large in name for large in ("VGG-16", "ResNet-110", "WideResNet", "ResNet-50")):
                    yield name, lambda build=build: _from_zoo(build)  # type: ignore[misc]


def _from_zoo(build: Callable[[], tuple[nn.Module, Any]]) -> Subject:
    torch.manual_seed(0)
    model, example = build()
    model.eval()
    batches = [(pytree.tree_map(drawn, example), torch.zeros(1, dtype=torch.long)) for _ in range(2)]
    return Subject(model, example, batches, squares)


def examine(row: Row, subject: Subject, limits: synflow.Limits) -> Row:
    """Prune with the guard and certify."""
    start = time.process_time()
    row.weights, row.layers, row.needed = limits.weights, limits.layers, limits.for_layers
    row.wanted = max(round(limits.weights / row.compression), limits.for_path, 1)
    row.below = row.wanted < limits.for_layers
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            masks = synflow.prune(
                subject.model, subject.example, density=row.wanted / row.weights, score=row.score, guard=True,
                data=subject.data, loss=subject.loss,
            )  # fmt: skip
            certificate = synflow.certify(subject.model, masks, subject.example)
        row.kept, row.connected = certificate.kept, certificate.connected
        row.dead = len(certificate.dead_layers)
        row.named = len([name for name in masks.about.get("given_up", "").split(", ") if name])
    # Whatever stops one run is a finding for the table, not a reason to stop the others.
    except Exception as error:
        row.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    row.seconds = time.process_time() - start
    return row


def table(rows: list[Row]) -> str:
    """One line per score and compression, and the runs that broke the promise."""
    lines = [
        "| score | compression | networks | disconnected | wrong count | dead layers | of these named: the count is "
        "below the least | other errors | processor seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for score in sorted({row.score for row in rows}):
        for compression in COMPRESSIONS:
            some = [row for row in rows if (row.score, row.compression) == (score, compression)]
            done = [row for row in some if not row.error]
            numbers = [
                len(some), sum(not row.connected for row in done), sum(row.kept != row.wanted for row in done),
                sum(row.dead for row in done), sum(row.named for row in done if row.below), len(some) - len(done),
                round(sum(row.seconds for row in some)),
            ]  # fmt: skip
            lines.append(f"| `{score}` | {compression}x | " + " | ".join(map(str, numbers)) + " |")
    bad = [row for row in rows if not row.good]
    lines += ["", f"{len(rows)} runs on {len({row.network for row in rows})} networks; {len(bad)} break the promise."]
    lines += [
        f"- {row.network}, {row.score}, {row.compression}x: kept {row.kept} of {row.wanted}, connected "
        f"{row.connected}, dead {row.dead}, named {row.named}, least {row.needed}; {row.error}"
        for row in bad
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, default=Path("runs/guard.jsonl"), help="rows as they are done")
    parser.add_argument("--only", nargs="*", default=["*"], metavar="PATTERN", help="networks")
    parser.add_argument("--score", nargs="*", default=sorted(synflow.SCORES), help="scores (default: all)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.log.parent.mkdir(parents=True, exist_ok=True)
    logged = options.log.read_text().splitlines() if options.log.exists() else []
    rows = {(row.network, row.score, row.compression): row for row in (Row(**json.loads(line)) for line in logged)}
    wanted = [(name, build) for name, build in subjects() if any(fnmatchcase(name, p) for p in options.only)]
    with options.log.open("a") as log:
        for name, build in (bar := tqdm(wanted, unit="net")):
            missing = [key for s in options.score for c in COMPRESSIONS if (key := (name, s, c)) not in rows]
            if not missing:
                continue
            bar.set_description(name)
            subject = build()
            limits = synflow.limits(subject.model, subject.example)
            if limits.weights > SMALL:
                continue
            for key in missing:
                row = rows[key] = examine(Row(*key), subject, limits)
                log.write(json.dumps(asdict(row)) + "\n")
                log.flush()
                if not row.good:
                    bar.write(str(row), file=sys.stderr)
    print(table(list(rows.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
