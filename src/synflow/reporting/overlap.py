"""The overlap of two sets of masks of one model, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..errors import SynflowError


@dataclass(frozen=True)
class Overlap:
    """Densities of two masks of a layer; of the weights either keeps, the share both keep, measured and by chance."""

    name: str
    total: int
    density_a: float
    density_b: float
    overlap: float
    chance: float


def overlaps(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], name_a: str = "the first", name_b: str = "the second"
) -> list[Overlap]:
    """Compare two sets of masks of one model; the last row is the whole network.

    >>> import torch
    >>> masks = {"w": torch.tensor([True, True, False, False])}
    >>> overlaps(masks, {"w": torch.tensor([True, False, True, False])})[0].overlap
    0.3333333333333333
    """
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())[0]
        lacking = name_b if odd in a else name_a
        raise SynflowError(f"{lacking} has no mask for {odd}; only masks of one model, with one selection, compare")
    rows, sums = [], [0, 0, 0, 0, 0.0]
    for name in a:
        if a[name].shape != b[name].shape:
            raise SynflowError(
                f"{name}: the masks have shapes {tuple(a[name].shape)} and {tuple(b[name].shape)}; only masks of one "
                "model compare"
            )
        total, kept_a, kept_b = a[name].numel(), int(a[name].sum()), int(b[name].sum())
        both = int((a[name] & b[name]).sum())
        expected = kept_a * kept_b / total if total else 0.0
        rows.append(_row(name, total, kept_a, kept_b, both, expected))
        sums = [x + y for x, y in zip(sums, (total, kept_a, kept_b, both, expected), strict=True)]
    return [*rows, _row("whole network", int(sums[0]), int(sums[1]), int(sums[2]), int(sums[3]), sums[4])]


def _row(name: str, total: int, kept_a: int, kept_b: int, both: int, expected: float) -> Overlap:
    def share(common: float) -> float:
        either = kept_a + kept_b - common
        return common / either if either else 0.0

    return Overlap(name, total, kept_a / max(total, 1), kept_b / max(total, 1), share(both), share(expected))
