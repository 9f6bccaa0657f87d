"""What each method costs: passes, images and seconds."""

from __future__ import annotations

from pathlib import Path

from ..configs import Config, configured
from .accuracy import Results
from .drawing import Drawing
from .style import COLOURS, LABELS, METHODS, canvas, save

__all__ = ["configs", "draw"]


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
    found = {r["config"]["method"]: r["outcome"] for r in results}
    shown = [method for method in METHODS if method in found]
    with canvas(width=4.2, height=2.4) as (figure, axes):
        panel = axes[0][0]
        seconds = [found[method]["prune_seconds"] for method in shown]
        panel.barh([LABELS[m] for m in shown], seconds, color=[COLOURS[m] for m in shown])
        panel.set(xscale="log", xlabel="seconds on this machine")
        paths = save(figure, folder, "cost")
    table = [
        {
            "method": LABELS[method], "steps": found[method]["steps"], "forward passes": found[method]["forward"],
            "backward passes": found[method]["backward"], "examples passed": found[method]["examples"],
            "images needed": found[method]["images"], "seconds": f"{found[method]['prune_seconds']:.2f}",
        }
        for method in shown
    ]  # fmt: skip
    return Drawing(tuple(paths), table, ("a pass is one batch through the network, forward or backward",))
