"""How density falls over the steps: each schedule maps (step, steps, density) to the density after that step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Schedule: TypeAlias = Callable[[int, int, float], float]


def exponential(step: int, steps: int, density: float) -> float:
    """Compression rho**(k/n): the same factor at each step, as in the paper.

    >>> [round(1 / exponential(k, 2, 0.01)) for k in (0, 1, 2)]
    [1, 10, 100]
    """
    return float(density ** (step / steps))


def linear(step: int, steps: int, density: float) -> float:
    """Compression k/n * rho, at least one: the paper's linear schedule.

    >>> [round(1 / linear(k, 4, 0.01)) for k in (0, 1, 2, 4)]
    [1, 25, 50, 100]
    """
    return 1.0 / max(1.0, step / steps / density)


def linear_density(step: int, steps: int, density: float) -> float:
    """The same number of weights at each step: the linear schedule of the authors' code.

    >>> [round(linear_density(k, 4, 0.2), 3) for k in (0, 1, 2, 4)]
    [1.0, 0.8, 0.6, 0.2]
    """
    return 1.0 - (1.0 - density) * step / steps


def certified(step: int, steps: int, density: float) -> float:
    """Directly to the target density, in as few steps as provably leave a path.

    Each step removes the least-scored weights whose scores sum to less than `margin` times the flow. By the union
    bound some path survives, in any architecture.
    """
    return density


SCHEDULE_FORM = "(step, steps, density) -> density"
SCHEDULES: dict[str, Schedule] = {
    "exponential": exponential,
    "linear": linear,
    "linear_density": linear_density,
    "certified": certified,
}
