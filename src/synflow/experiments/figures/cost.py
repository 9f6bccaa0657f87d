"""What each method costs: passes, images and seconds."""

from __future__ import annotations

from pathlib import Path

from ..configs import Config, configured
from .accuracy import Results, outcomes
from .drawing import Drawing
from .style import COLOURS, LABELS, METHODS, canvas, save

__all__ = ["configs", "draw"]

NOTES = (
    "a pass is one batch through the network, forward or backward",
    "seconds are those of one run each; passes and images are the same in every run",
)


def configs(scale: str) -> list[Config]:
    """Each method at a hundredfold compression."""
    base = Config(task="cost", model="vgg16_bn", dataset="cifar100", compression=100.0)
    if scale == "smoke":
        base = Config(task="cost", model="conv", width=0.25, dataset="digits", compression=10.0, images_per_class=1)
    if scale == "laptop":
        base = Config(task="cost", model="vgg16_bn", width=0.25, dataset="cifar10", compression=100.0)
    return [configured(base, method=method) for method in METHODS]


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Seconds as bars, passes in the table."""
    del scale
    found = outcomes(results, "prune_seconds")
    with canvas(width=4.2, height=2.4) as (figure, axes):
        panel = axes[0][0]
        seconds = [outcome["prune_seconds"] for outcome in found.values()]
        bars = panel.barh([LABELS[m] for m in found], seconds, color=[COLOURS[m] for m in found])
        panel.bar_label(bars, [f"{value:.3g}" for value in seconds], padding=3)
        panel.margins(x=0.12)
        panel.invert_yaxis()
        panel.set_xlabel("seconds on this machine")
        paths = save(figure, folder, "cost")
    table = [
        {
            "method": LABELS[method], "steps": outcome["steps"], "forward passes": outcome["forward"],
            "backward passes": outcome["backward"], "examples passed": outcome["examples"],
            "images needed": outcome["images"], "seconds": f"{outcome['prune_seconds']:.2f}",
        }
        for method, outcome in found.items()
    ]  # fmt: skip
    return Drawing(tuple(paths), table, NOTES)
