"""Figure 2: weights kept per layer, VGG-19 at initialisation, and where layers collapse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..configs import Config, configured
from ..tasks.layers import EXPONENTS
from .accuracy import Results
from .drawing import Drawing
from .style import COLOURS, LABELS, METHODS, canvas, save

__all__ = ["configs", "draw", "layer_base"]


def layer_base(scale: str) -> Config:
    """The network that figures 2 to 4 look at; no training, so the paper's own even on a laptop."""
    if scale == "smoke":
        return Config(task="layers", model="vgg11", width=0.0625, dataset="digits32", images_per_class=1, steps=10)
    if scale == "laptop":
        return Config(task="layers", model="vgg19", width=0.25, dataset="digits32", images_per_class=10)
    return Config(task="layers", model="vgg19", dataset="imagenet", images_per_class=10)


def configs(scale: str) -> list[Config]:
    """Single-shot methods are scored once; SynFlow is run for each compression."""
    base = layer_base(scale)
    exponents = (1.0, 2.0, 3.0) if scale == "smoke" else EXPONENTS[1:]
    once = [configured(base, method=method) for method in METHODS if method != "synflow"]
    return once + [configured(base, method="synflow", compression=10**exponent) for exponent in exponents]


def remaining(results: Results, method: str) -> dict[float, dict[str, int]]:
    """Weights kept in each layer, by log10 of compression."""
    found: dict[float, dict[str, int]] = {}
    for result in results:
        if result["config"]["method"] == method:
            found |= {float(exponent): kept for exponent, kept in result["outcome"].get("kept", {}).items()}
    return dict(sorted(found.items()))


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """A panel per method: the fraction left of each layer, paler with compression, dashed once a layer is empty."""
    sizes: dict[str, int] = results[0]["outcome"]["sizes"]
    table: list[dict[str, Any]] = []
    notes: list[str] = []
    shown = [method for method in METHODS if remaining(results, method)]
    with canvas(1, len(shown), width=2.7, height=3.0) as (figure, axes):
        for panel, method in zip(axes[0], shown, strict=True):
            curves = remaining(results, method)
            curves.setdefault(0.0, dict(sizes))
            images = max(r["outcome"]["images"] for r in results if r["config"]["method"] == method)
            last_whole = None
            for exponent, kept in sorted(curves.items()):
                empty = [name for name, number in kept.items() if number == 0]
                share = [kept[name] / sizes[name] for name in sizes]
                panel.plot(
                    range(1, len(sizes) + 1), [value or None for value in share], color=COLOURS[method],
                    alpha=1 - 0.8 * exponent / max(max(curves), 1), linestyle="--" if empty else "-", linewidth=1.2,
                )  # fmt: skip
                last_whole = last_whole if empty else exponent
                table.append(
                    {
                        "method": LABELS[method], "compression": f"10^{exponent:g}",
                        "kept": f"{sum(kept.values()):,}", "empty layers": len(empty),
                        "least fraction": f"{min(share):.2e}", "largest fraction": f"{max(share):.2e}",
                    }
                )  # fmt: skip
            panel.set_yscale("log")
            panel.set_ylim(1e-8 if scale == "paper" else 1e-5, 2)
            panel.set_title(title(method, images))
            panel.set_xlabel("layer")
            notes.append(f"{LABELS[method]} keeps a weight in every layer up to 10^{last_whole:g} on this grid")
        axes[0][0].set_ylabel("fraction of weights left")
        paths = save(figure, folder, "fig2")
    lines = "a line for each compression of the table, paler with compression; dashed where a layer is empty"
    return Drawing(tuple(paths), table, (lines, *notes, *image_notes(results)))


def title(method: str, images: int) -> str:
    """The name of a method, and on how many images it was scored."""
    return LABELS[method] + (f"\n({images:,} images)" if images else "")


def image_notes(results: Results) -> tuple[str, ...]:
    """Says so where scores saw fewer images than the paper's ten per class."""
    notes = {
        f"{LABELS[r['config']['method']]} was scored on {r['outcome']['images']:,} images; "
        f"the paper used ten per class (10,000)"
        for r in results
        if r["config"]["dataset"] == "imagenet" and 0 < r["outcome"]["images"] < 10_000
    }
    return tuple(sorted(notes))
