"""A run, written down: a frozen record whose hash is the run's identity."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from synflow import SCHEDULES, SCOPES, SCORES
from synflow.errors import SynflowError, named

from ..models.own_files import MOST_SEEDS, function_in, is_file
from ..pruning.scores import traits_of
from .data import DATASETS
from .recipes import STARTS, Recipe

__all__ = [
    "ABLATIONS",
    "METHODS",
    "Config",
    "configured",
    "from_dict",
    "identity",
    "names",
    "reads_data",
    "starting_point",
    "to_dict",
]

ABLATIONS = ("none", "reinitialise", "redraw", "shuffle", "invert")
# What stands for itself beside the scores: no pruning, and plain narrower networks as large as SynFlow's result.
METHODS = (*SCORES, "dense", "narrow_flops", "narrow_weights")


@dataclass(frozen=True)
class Config:
    """Everything that decides the result of a run, and nothing that does not (where, when, how many at a time).

    `images_per_class`, or `images` in all, are what SNIP and GraSP are scored on. `scoring="eval"` is the paper's first
    version: SNIP and GraSP in eval mode, GraSP with the opposite sign and temperature 1. `compact=False` trains the
    masked network, with the same result. `rounds` and `rewind` are those of iterative magnitude pruning; `rewind=False`
    is as published. Model, method and schedule may be functions of the user's, `file.py:function`.
    """

    task: str = "train"
    model: str = "resnet20"
    width: float = 1.0
    dataset: str = "digits"
    train_per_class: int | None = None
    test_per_class: int | None = None
    method: str = "synflow"
    compression: float = 1.0
    steps: int | None = None
    schedule: str = "exponential"
    margin: float = 0.5
    guard: bool = True
    scope: str = "global"
    images_per_class: int = 10
    images: int | None = None
    scoring: str = "train"
    ablation: str = "none"
    rounds: int = 1
    rewind: bool = True
    compact: bool = True
    seed: int = 0
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        named("data set", self.dataset, DATASETS)
        for kind, name, table in (("method", self.method, {*METHODS, *SCORES}), ("schedule", self.schedule, SCHEDULES)):
            if not is_file(name):
                named(kind, name, table, ", or file.py:function")
        named("scope", self.scope, SCOPES)
        named("ablation", self.ablation, ABLATIONS)
        named("scoring mode", self.scoring, ("train", "eval"))
        if not -MOST_SEEDS < self.seed < MOST_SEEDS:
            raise SynflowError(f"a seed is below {MOST_SEEDS:,}, got {self.seed}")
        if not self.compression >= 1:
            raise SynflowError(f"compression must be at least 1, got {self.compression!r}")


def reads_data(method: str) -> bool:
    """Whether a method reads images, as the traits of its score say; the file of a score of one's own runs.

    >>> reads_data("snip"), reads_data("synflow"), reads_data("dense")
    (True, False, False)
    """
    score = function_in(method) if is_file(method) else SCORES.get(method)
    return score is not None and traits_of(score).needs_data


def starting_point(settings: Mapping[str, Any]) -> Config:
    """What a sweep starts from: the defaults, with a recipe that suits the data set where there is one.

    >>> starting_point({"dataset": "digits"}).recipe.epochs, starting_point({"dataset": "cifar10"}).recipe.epochs
    (20, 1)
    """
    return Config(recipe=STARTS.get(settings.get("dataset", Config.dataset), Recipe()))


def configured(base: Config, **changes: Any) -> Config:
    """A config with other settings, those of its recipe included.

    >>> configured(Config(), compression=10, lr=0.01).recipe.lr
    0.01
    """
    known, inner = names(), {f.name for f in dataclasses.fields(Recipe)}
    for name in changes:
        if name not in known:
            raise SynflowError(f"no setting {name!r}; choose from {', '.join(sorted(known))}")
    recipe = changes.pop("recipe", base.recipe)
    if isinstance(recipe, Mapping):
        recipe = replace(base.recipe, **_typed(Recipe, recipe))
    if not isinstance(recipe, Recipe):
        raise SynflowError(f"recipe must be a table of settings, got {recipe!r}")
    for_recipe = {name: value for name, value in changes.items() if name in inner}
    own = {name: value for name, value in changes.items() if name not in inner}
    return replace(base, **_typed(Config, own), recipe=replace(recipe, **_typed(Recipe, for_recipe)))


def names() -> set[str]:
    """The names of all settings."""
    return {f.name for record in (Config, Recipe) for f in dataclasses.fields(record)}


def _typed(record: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as the fields want them: JSON, TOML and command lines know no tuples, and 1 for 1.0."""
    kinds = {f.name: str(f.type) for f in dataclasses.fields(record)}
    typed: dict[str, Any] = {}
    for name, value in values.items():
        kind = kinds.get(name)
        if kind is None:
            raise SynflowError(f"no setting {name!r}; choose from {', '.join(sorted(kinds))}")
        wanted = {"float": (float, int), "bool": (bool,), "str": (str,), "int": (int,), "int | None": (int, type(None))}
        if kind.startswith("tuple"):
            value = tuple(value) if isinstance(value, list | tuple) else (value,)
            if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
                raise SynflowError(f"{name} must be a list of whole numbers, got {list(value)!r}")
        elif not isinstance(value, wanted[kind]) or (kind != "bool" and isinstance(value, bool)):
            raise SynflowError(f"{name} must be {kind}, got {value!r}")
        typed[name] = float(value) if kind == "float" else value
    return typed


def to_dict(config: Config) -> dict[str, Any]:
    """Plain values, for JSON."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return found


def from_dict(values: Mapping[str, Any]) -> Config:
    """The config that `to_dict` wrote down."""
    return configured(Config(), **values)


def canonical(config: Config) -> Config:
    """One config for what is one run: images do not matter to most scores, nor the method at compression 1.

    A score of the user's is taken to read them: results are read without running anybody's file.
    """
    if not is_file(config.method) and not reads_data(config.method):
        default = Config()
        unseen = ("images_per_class", "images", "scoring")
        config = replace(config, **{name: getattr(default, name) for name in unseen})
    if config.task == "train" and (config.compression == 1 or config.method == "dense"):
        default = Config()
        unused = (
            "steps",
            "schedule",
            "margin",
            "guard",
            "scope",
            "images_per_class",
            "images",
            "scoring",
            "ablation",
            "compact",
        )
        return replace(config, method="dense", compression=1.0, **{name: getattr(default, name) for name in unused})
    return config


def identity(config: Config) -> str:
    """A name that equal runs share and no others: readable first, then a hash.

    Only settings that differ from the defaults count, so that a setting added later leaves old names as they are.

    >>> identity(Config(compression=10.0))
    'train-resnet20-digits-synflow-245171cc53c4'
    """
    config = canonical(config)
    said = {f.name: getattr(config, f.name) for f in dataclasses.fields(Config) if f.name != "recipe"}
    said |= {f"recipe.{f.name}": getattr(config.recipe, f.name) for f in dataclasses.fields(Recipe)}
    default = {f.name: getattr(Config(), f.name) for f in dataclasses.fields(Config)}
    default |= {f"recipe.{f.name}": getattr(Recipe(), f.name) for f in dataclasses.fields(Recipe)}
    different = {name: value for name, value in said.items() if value != default[name]}
    digest = hashlib.sha256(json.dumps(different, sort_keys=True).encode()).hexdigest()[:12]
    readable = "-".join((config.task, config.model.rsplit("/", 1)[-1], config.dataset, config.method))
    return f"{re.sub(r'[^A-Za-z0-9_.]+', '-', readable)}-{digest}"
