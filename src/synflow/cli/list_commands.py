"""`synflow models`, `scores`, `schedules`, `scopes`, `data`: the available names, one line each."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from ..errors import SynflowError
from . import options

FAMILIES = (
    ("fc", "fully connected, 6 layers of 100 units"),
    ("conv", "two 3x3 convolutions of 32 channels, one linear layer"),
    ("vgg*_bn", "VGG with batch norm"),
    ("vgg*", "VGG without batch norm"),
    ("resnet18", "ResNet of four stages, 64 to 512 channels"),
    ("resnet34", "ResNet of four stages, 64 to 512 channels"),
    ("resnet50", "ResNet of bottlenecks, 256 to 2048 channels"),
    ("resnet101", "ResNet of bottlenecks, 256 to 2048 channels"),
    ("resnet*", "CIFAR ResNet of three stages, 16 to 64 channels"),
    ("mobilenet*", "small MobileNet: inverted residuals, depthwise convolutions"),
    ("vit*", "small vision transformer, 6 blocks"),
    ("wide_resnet*", "ResNet with twice the channels inside its blocks"),
)
OTHERS = {
    "timm:NAME": "models of timm; `synflow models timm` lists them",
    "torchvision:NAME": "models of torchvision; `synflow models torchvision` lists them",
    "transformers:NAME": "a type such as bert or gpt2, a config.json, or a name on the hub",
    "FILE.py:FACTORY": "your own: a function that returns a model, or a model and an example",
}


def models(
    pattern: Annotated[
        str | None, typer.Argument(metavar="PATTERN", help="Such as vgg*, timm, timm:resnet*, torchvision.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List the built-in models, or those of timm or torchvision."""
    from .output import print_json, say

    library, _, rest = (pattern or "").partition(":")
    listed = library in ("timm", "torchvision")
    found = _in_library(library, rest or "*") if listed else _built_in(pattern or "*")
    if not found:
        raise SynflowError(f"no model matches {pattern!r}; try `synflow models`, or with a star: 'timm:*vit*'")
    if json:
        print_json(found)
    elif listed:
        say("\n".join(found))
    else:
        _show("model", found)
        if pattern is None:
            say()
            _show("others", OTHERS)


def scores(json: options.Json = False) -> None:
    """List the scores that weights are ranked by."""
    from ..pruning.scores import SCORES, traits_of
    from .output import print_json, table

    rows = {}
    for name, function in SCORES.items():
        traits = traits_of(function)
        rows[name] = {"what": _first_line(function), "needs data": traits.needs_data, "steps": traits.steps}
    if json:
        print_json(rows)
        return
    table(
        ["score", "data", ("steps", "right"), "what it is"],
        [
            [name, "yes" if row["needs data"] else "no", str(row["steps"]), str(row["what"])]
            for name, row in rows.items()
        ],
    )


def schedules(json: options.Json = False) -> None:
    """List the schedules: the density after each step."""
    from ..pruning.schedules import SCHEDULES

    _list("schedule", SCHEDULES, json)


def scopes(json: options.Json = False) -> None:
    """List the scopes: which weights compete, and the density of each layer."""
    from ..pruning.scopes import SCOPES

    _list("scope", SCOPES, json)


def data(json: options.Json = False) -> None:
    """List the known data sets."""
    from ..experiments.data import DATASETS

    _list("data set", DATASETS, json)


def _in_library(library: str, pattern: str) -> dict[str, str]:
    from ..models.sources import names_in

    return {f"{library}:{name}": "" for name in names_in(library) if fnmatch.fnmatch(name, pattern)}


def _built_in(pattern: str) -> dict[str, str]:
    return {name: _family(name) for name in options.names_of("model") if fnmatch.fnmatch(name, pattern)}


def _family(name: str) -> str:
    return next((text for pattern, text in FAMILIES if fnmatch.fnmatch(name, pattern)), "a network of the library")


def _list(kind: str, functions: Mapping[str, Callable[..., Any]], json: bool) -> None:
    from .output import print_json

    rows = {name: _first_line(function) for name, function in functions.items()}
    if json:
        print_json(rows)
    else:
        _show(kind, rows)


def _show(kind: str, rows: Mapping[str, str]) -> None:
    from .output import table

    table([kind, "what it is"], [[name, text] for name, text in rows.items()])


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]
