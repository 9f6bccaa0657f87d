"""The pictures of the documentation, drawn from real scores and real runs.

python tools/pictures.py                                  docs/images/flow.svg
python tools/pictures.py --demo synflow-demo/results.json docs/images/collapse.svg, from a run of `make demo`
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import synflow
from synflow.cli.demo_training import METHODS
from synflow.reporting.figures import curve_image
from synflow.reporting.svg import standalone

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SIZES = (3, 4, 5, 2)
KEEP = 7
WIDTH, HEIGHT = 230, 190


def network() -> nn.Module:
    """Layers whose scales differ, as those of real networks do: the wide middle has the smallest weights."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layer = nn.Linear(inputs, outputs, bias=False)
        nn.init.normal_(layer.weight, std=1.0 / (inputs * outputs) ** 0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def place(layer: int, unit: int) -> tuple[float, float]:
    """Where a unit is drawn."""
    step = (WIDTH - 40) / (len(SIZES) - 1)
    return 20 + layer * step, HEIGHT / 2 + (unit - (SIZES[layer] - 1) / 2) * 34


def panel(x: float, title: str, masks: dict[str, Tensor], scores: dict[str, Tensor]) -> str:
    """One network: lines as wide as the flow, dotted where a kept weight carries none."""
    top = max(float(score.max()) for score in scores.values()) or 1.0
    parts = [f'<g transform="translate({x} 0)">', f'<text x="{WIDTH / 2}" y="14" text-anchor="middle">{title}</text>']
    for layer, (name, mask) in enumerate(masks.items()):
        for target, source in mask.nonzero().tolist():
            (x1, y1), (x2, y2) = place(layer, source), place(layer + 1, target)
            score = float(scores[name][target, source]) / top
            style = 'class="dead"' if score == 0 else f'class="flow" stroke-width="{0.7 + 7 * score**0.5:.1f}"'
            parts.append(f'<line {style} x1="{x1:.0f}" y1="{y1 + 12:.0f}" x2="{x2:.0f}" y2="{y2 + 12:.0f}"/>')
    for layer, size in enumerate(SIZES):
        for unit in range(size):
            a, b = place(layer, unit)
            parts.append(f'<circle class="unit" cx="{a:.0f}" cy="{b + 12:.0f}" r="7"/>')
    return "".join([*parts, "</g>"])


def flow_picture() -> str:
    """The network before pruning, after magnitude, after SynFlow."""
    model, example = network(), torch.ones(1, SIZES[0])
    everything = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in synflow.prunable(model).items()}
    total = sum(mask.numel() for mask in everything.values())
    density = KEEP / total
    by_size = synflow.prune(model, example, density=density, score="magnitude")
    by_flow = synflow.prune(model, example, density=density)
    titles = (f"before: {total} weights", f"magnitude: {KEEP} weights", f"SynFlow: {KEEP} weights")
    parts = [
        panel(index * (WIDTH + 20), title, masks, synflow.score(model, example, masks=masks))
        for index, (title, masks) in enumerate(zip(titles, (everything, by_size, by_flow), strict=True))
    ]
    style = (
        "text{font:14px system-ui,'DejaVu Sans',sans-serif;fill:#77808c}.unit{fill:#8b95a1}.flow{stroke:#2f86c8;"
        "stroke-opacity:.8}.dead{stroke:#d9702e;stroke-width:1.6;stroke-dasharray:2 4}"
    )
    width = 3 * WIDTH + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 20}" width="{width}" '
        f'height="{HEIGHT + 20}"><style>{style}</style>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, help="results.json of a run of the demonstration")
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    if options.demo is None:
        (IMAGES / "flow.svg").write_text(flow_picture())
        return
    results = json.loads(options.demo.read_text())
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(results["outcomes"], key=lambda row: METHODS.index(row["method"])):
        curves.setdefault(row["method"], []).append((row["compression"], row["accuracy"]))
    dense = results["variants"][0]["accuracy"]
    image = curve_image("Accuracy against compression, by method", curves, levels={"dense": dense})
    (IMAGES / "collapse.svg").write_text(standalone(image))


if __name__ == "__main__":
    main()
