"""The targets of `synflow prune`, and the density of those that need no search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SynflowError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Target:
    """The target that the user gave; exactly one field is set."""

    compression: Annotated[float | None, typer.Option(metavar="X", help="Target: keep one weight in X.")] = None
    density: Annotated[
        float | None, typer.Option(metavar="D", help="Target: keep this share of the weights, 0 to 1.")
    ] = None
    keep: Annotated[int | None, typer.Option(metavar="COUNT", help="Target: keep exactly COUNT weights.")] = None
    flops: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Target: the compact network needs this share of the operations, 0 to 1."),
    ] = None
    speedup: Annotated[
        float | None,
        typer.Option(metavar="X", help="Target: the compact network runs X times faster on this machine."),
    ] = None

    def __post_init__(self) -> None:
        given = [name for name, value in vars(self).items() if value is not None]
        if len(given) != 1:
            got = "none of them" if not given else " and ".join(f"--{name}" for name in given)
            raise SynflowError(f"give one target: --compression, --density, --keep, --flops or --speedup; got {got}")
        if self.flops is not None and not 0 < self.flops <= 1:
            raise SynflowError(f"--flops is the share of the dense network's operations, 0 to 1, got {self.flops:g}")
        if self.speedup is not None and not 1 <= self.speedup < math.inf:
            raise SynflowError(f"--speedup is at least 1, got {self.speedup:g}")


def simple_density(target: Target, model: nn.Module, select: Any = None, protect: Any = ()) -> float | None:
    """The density of a target that needs no search; None for those that do."""
    from ..network.selection import prunable

    if target.compression is not None:
        if not target.compression >= 1 or math.isinf(target.compression):
            raise SynflowError(f"--compression is at least 1 (100 keeps one weight in 100), got {target.compression:g}")
        return 1 / target.compression
    if target.density is not None:
        if not 0 < target.density <= 1:
            raise SynflowError(f"--density is the share of weights that stays, 0 to 1, got {target.density:g}")
        return target.density
    if target.keep is None:
        return None
    size = sum(weight.numel() for weight in prunable(model, select, protect).values())
    if not 1 <= target.keep <= size:
        raise SynflowError(f"--keep {target.keep}: the network has {size:,} prunable weights; keep 1 to all of them")
    return target.keep / size
