"""Eight methods against each other on four networks: accuracy against stored weights, and against arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from synflow import SCORES

from ..configs import Config, configured
from ..sweeps import unique
from .accuracy import Results
from .drawing import Drawing
from .small import full_width_base
from .style import NETWORKS as NAMES
from .style import PALETTE, canvas, log_cost_axis, save
from .uncertainty import half_width, interval, tested

__all__ = ["configs", "draw", "label", "recipe_changes"]

COSTS = {"kept": "stored weights", "flops": "MFLOP of a forward pass"}

ENTRANTS: dict[str, dict[str, Any]] = {
    "balanced": {"method": "balanced"},
    "SynFlow": {"method": "synflow"},
    "random, ERK densities": {"method": "random", "scope": "erk"},
    "SNIP": {"method": "snip"},
    "magnitude": {"method": "magnitude"},
    "GraSP": {"method": "grasp"},
    "FORCE": {"method": "force"},
    "PHEW": {"method": "phew"},
    "dense": {"method": "dense"},
    # Kept weights get new values: scores that prefer large weights leave large ones, which turn slowly.
    "balanced, redrawn": {"method": "balanced", "ablation": "redraw"},
    "SynFlow, redrawn": {"method": "synflow", "ablation": "redraw"},
    "SNIP, redrawn": {"method": "snip", "ablation": "redraw"},
}
FIRST = ("balanced", "SynFlow", "random, ERK densities", "SNIP")
REST = ("magnitude", "GraSP", "FORCE", "PHEW")
REDRAWN = ("balanced, redrawn", "SynFlow, redrawn", "SNIP, redrawn")
# Stages in the order of their runs, so that an early stop leaves whole comparisons.
Stages = tuple[tuple[str, float, tuple[str, ...]], ...]
LAPTOP: Stages = (
    ("resnet20", 50.0, FIRST),
    ("vit", 10.0, FIRST[:3]),
    ("resnet20", 20.0, FIRST),
    ("mobilenet", 20.0, FIRST),
    ("vgg11_bn", 100.0, ("balanced", "random, ERK densities", "SNIP")),
    ("resnet20", 50.0, REST),
    ("vit", 10.0, ("magnitude", "SNIP")),
    ("resnet20", 20.0, REST),
    ("mobilenet", 20.0, REST),
    ("vgg11_bn", 100.0, ("SynFlow", *REST)),
    ("vit", 10.0, ("GraSP", "FORCE", "PHEW")),
    ("resnet20", 1.0, ("dense",)),
    ("vit", 1.0, ("dense",)),
    ("mobilenet", 1.0, ("dense",)),
    ("vgg11_bn", 1.0, ("dense",)),
)
EVERYWHERE = (10.0, 20.0, 50.0, 100.0, 316.0, 1000.0)
PAPER: Stages = tuple(
    (model, compression, (*FIRST, *REST, "dense"))
    for model in ("resnet20", "vit", "vgg11_bn", "mobilenet")
    for compression in EVERYWHERE
)
SMOKE: Stages = (("conv", 10.0, ("balanced", "SynFlow", "random, ERK densities")), ("conv", 1.0, ("dense",)))
# What the shorter runs leave open, with twice the images: a transformer learns late, and large weights turn slowly.
LONGER = {"train_per_class": 1000, "epochs": 12, "evaluate_every": 12}
LONGER_STAGES: Stages = (
    ("vit", 10.0, FIRST[:3]),
    ("resnet20", 50.0, (*FIRST, *REDRAWN)),
    ("resnet20", 20.0, (*FIRST, *REDRAWN)),
)
# In the longer runs a transformer learns more from three times the rate, under every score.
FASTER_STAGES: Stages = (("vit", 10.0, (*FIRST[:3], *REDRAWN[:2])),)
FASTER = {**LONGER, "lr": 3e-3}
# Networks that sparse loops do not serve train slower: fewer epochs.
FEWER = {"epochs": 8, "evaluate_every": 8}
# Transformers learn little from plain momentum.
ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 1e-3, "lr_schedule": "one_cycle", "weight_decay": 0.0}


def configs(scale: str) -> list[Config]:
    """The runs of a scale, stage by stage, seed by seed; a score takes part as soon as it is in the table."""
    stages = {"smoke": SMOKE, "laptop": LAPTOP}.get(scale, PAPER)
    runs = list(_runs(scale, stages, (0,) if scale == "smoke" else (0, 1, 2)))
    if scale == "laptop":
        for more, changes in ((LONGER_STAGES, LONGER), (FASTER_STAGES, FASTER)):
            runs += [configured(config, **changes) for config in _runs(scale, more, (0, 1, 2))]
    return unique(runs)


def recipe_changes(model: str, scale: str) -> dict[str, Any]:
    """How the training of a network differs from that of the others at a scale."""
    fewer = FEWER if scale == "laptop" and model in ("vit", "mobilenet") else {}
    return {**(ADAM if model == "vit" else {}), **fewer}


def _runs(scale: str, stages: Stages, seeds: Iterable[int]) -> Iterable[Config]:
    base = full_width_base(scale)
    for (model, compression, names), seed in itertools.product(stages, seeds):
        recipe = recipe_changes(model, scale)
        for name in names:
            changes = ENTRANTS[name]
            if changes["method"] in (*SCORES, "dense"):
                yield configured(base, model=model, compression=compression, seed=seed, **changes, **recipe)


def label(config: Mapping[str, Any]) -> str:
    """The entrant that a run belongs to."""
    which = config["method"], config["ablation"]
    return next(
        name for name, changes in ENTRANTS.items() if (changes["method"], changes.get("ablation", "none")) == which
    )


def _network(config: Mapping[str, Any]) -> str:
    """The network of a run as tables name it."""
    longer = ", 10,000 images" if config["train_per_class"] == LONGER["train_per_class"] else ""
    faster = f", rate {FASTER['lr']:g}" if config["recipe"]["lr"] == FASTER["lr"] else ""
    return f"{NAMES.get(config['model'], config['model'])}{longer}{faster}"


def draw(results: Results, folder: Path, scale: str) -> Drawing:
    """Two rows: accuracy against kept weights, and against operations after compaction; a column for each network."""
    del scale
    groups: dict[tuple[str, float, str], list[Mapping[str, Any]]] = {}
    for result in results:
        config = result["config"]
        groups.setdefault((_network(config), config["compression"], label(config)), []).append(result)
    found = sorted({key[0] for key in groups})
    models = sorted(found, key=lambda name: next((i for i, n in enumerate(NAMES.values()) if name.startswith(n)), 99))
    order = [*ENTRANTS]
    table = [
        _row(*key, group)
        for key, group in sorted(groups.items(), key=lambda g: (models.index(g[0][0]), -g[0][1], order.index(g[0][2])))
    ]
    looks = dict(zip((*FIRST, *REST, "dense"), zip(PALETTE, "oDs^vP*Xh", strict=False), strict=True))
    with canvas(2, len(models), width=3.2, height=3.0) as (figure, axes):
        for column, model in enumerate(models):
            for panel, key, said in zip(axes[:, column], COSTS, COSTS.values(), strict=True):
                for name in ENTRANTS:
                    mine = [group for k, group in groups.items() if k[0] == model and k[2] == name]
                    plain = name.removesuffix(", redrawn")
                    place = [*looks].index(plain) + (0.0 if plain == name else 0.5)
                    aside = 1.035 ** (place - 4) if key == "kept" else 1.0
                    _curve(panel, mine, key, name, looks[plain], aside)
                panel.set(xlabel=said)
                log_cost_axis(panel)
            axes[0][column].set_title(model)
        for row in axes:
            row[0].set_ylabel("top-1 accuracy (%)")
        handles = {
            text: line for panel in axes.flat for line, text in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=8)
        paths = save(figure, folder, "tournament")
    notes = (
        "operations (two for each multiplication) and parameters are those of the compact network, zeros inside its "
        "layers included",
        "dead layers: those without any weight, and those without a weight on a path; means over seeds",
        "points are means over seeds, bars reach from the lowest to the highest; for one seed: the 95% interval over "
        "test images",
        "in the upper row points of equally many weights are set side by side",
    )
    return Drawing(tuple(paths), table, notes)


def _curve(
    panel: Any, found: list[list[Mapping[str, Any]]], key: str, name: str, look: tuple[str, str], aside: float
) -> None:
    """An entrant's compressions on one network, each a mean with a bar over its seeds."""
    if not found:
        return
    found = sorted(found, key=lambda group: _mean(group, key))
    tops = [[float(result["outcome"]["top1"]) for result in group] for group in found]
    means = [fmean(top) for top in tops]
    ranges = [
        (min(top), max(top)) if len(top) > 1 else _of_images(top[0], tested(found[0][0]["config"])) for top in tops
    ]
    spread = [[mean - low for mean, (low, _) in zip(means, ranges, strict=True)]]
    spread.append([high - mean for mean, (_, high) in zip(means, ranges, strict=True)])
    x = [_mean(group, key) * aside / (1e6 if key == "flops" else 1) for group in found]
    fill = "none" if name.endswith("redrawn") else "full"
    panel.errorbar(
        x, means, spread, color=look[0], marker=look[1], label=name, linewidth=1.0, capsize=2, fillstyle=fill
    )


def _of_images(top1: float, images: int) -> tuple[float, float]:
    """The 95% interval over test images, for a single seed."""
    return top1 - half_width(top1, images), top1 + half_width(top1, images)


def _mean(group: list[Mapping[str, Any]], key: str) -> float:
    return fmean(float(result["outcome"].get(key) or 0) for result in group)


def _row(network: str, compression: float, name: str, group: list[Mapping[str, Any]]) -> dict[str, Any]:
    disconnected = sum(not result["outcome"].get("connected", True) for result in group)
    dead = f"{_mean(group, 'empty_layers'):.1f}, {_mean(group, 'dead_layers'):.1f}"
    return {
        "network": network, "compression": f"{compression:g}", "score": name,
        "top-1 (%)": interval(group), "weights": f"{_mean(group, 'kept'):,.0f}",
        "MFLOP": f"{_mean(group, 'flops') / 1e6:.1f}", "parameters": f"{_mean(group, 'parameters'):,.0f}",
        "dead layers": dead + (f", {disconnected} disconnected" if disconnected else ""),
    }  # fmt: skip
