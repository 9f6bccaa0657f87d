"""What the outcome of each task holds: figures rely on it, so files that were forged or damaged are refused here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..support.json_files import Between, check_form
from .configs import Config

__all__ = ["ABOUT_FORM", "check_outcome", "form_of"]

# Beyond this a number is no measurement, and drawing it would overflow.
HUGE = 10**30
COUNT, MAYBE_COUNT = Between(0, HUGE), Between(0, HUGE, optional=True)
MEASURE, MAYBE_MEASURE = Between(-1e30, 1e30), Between(-1e30, 1e30, optional=True)
SECONDS, PERCENT, MAYBE_PERCENT = Between(0.0, 1e30), Between(0.0, 100.0), Between(0.0, 100.0, optional=True)
MAYBE_FLAG = (bool, type(None))
# What the page of a figure says of its runs.
ABOUT_FORM = {"seconds": SECONDS, "threads": COUNT, "torch": str}

_BATCH_NORM = {
    "inflow": [MEASURE], "outflow": [MEASURE], "unit_residual": MEASURE, "layer_residual": MEASURE,
    "layers_with_shifts": {str: MEASURE},
}  # fmt: skip
_TIMED = {"seconds": [SECONDS], "top1": PERCENT, "flops": COUNT}
# Losses are missing: those of a training that diverged are NaN.
FORMS: dict[str, dict[str, Any]] = {
    "batch_norm": {"fresh": _BATCH_NORM, "trained": _BATCH_NORM},
    "cost": {
        "steps": COUNT, "forward": COUNT, "backward": COUNT, "examples": COUNT, "images": COUNT,
        "prune_seconds": SECONDS,
    },
    "imp": {"top1": PERCENT},
    "layers": {"sizes": {str: Between(1, HUGE)}, "images": COUNT},
    "magnitudes": {"sizes": {str: Between(1, HUGE)}, "mean_square": [{str: MEASURE}]},
    "ratios": {"largest": SECONDS, "alive": bool},
    "timing": {"masked": _TIMED, "compact": _TIMED},
    "train": {
        "top1": MAYBE_PERCENT, "kept": Between(0.0, 1e30), "total": Between(0.0, 1e30), "connected": MAYBE_FLAG,
        "empty_layers": MAYBE_COUNT, "dead_layers": MAYBE_COUNT, "prune_seconds": MAYBE_MEASURE,
        "parameters": COUNT, "flops": COUNT, "train_seconds": SECONDS, "flow_log2": MAYBE_MEASURE,
        "prune_steps": MAYBE_COUNT,
    },
}  # fmt: skip
# What a run of `layers` has beside, by method and compression.
_SCORES = {
    "inflow": [MEASURE], "outflow": [MEASURE], "unit_residual": MEASURE, "mean_score": {str: MEASURE},
    "sum_signed": {str: MEASURE},
}  # fmt: skip


def form_of(config: Config, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What figures need of an outcome, and the form of each value."""
    form = dict(FORMS.get(config.task, {}))
    if config.task == "train" and config.recipe.epochs:
        form["top1"] = PERCENT
    if config.task == "layers":
        form |= {"kept": {str: {str: COUNT}}} if "kept" in outcome else {}
        form |= _SCORES if "inflow" in outcome or "kept" not in outcome else {}
        form |= {key: [MEASURE] for key in ("signed_inflow", "signed_outflow") if "signed_inflow" in outcome}
    return form


def check_outcome(config: Config, outcome: Mapping[str, Any], name: str) -> None:
    """Refuse an outcome that its task cannot have given; `name` says in the error where it was read."""
    check_form({"outcome": outcome}, {"outcome": form_of(config, outcome)}, name)
