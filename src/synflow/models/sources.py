"""Models by name: built-in, `timm:NAME`, `torchvision:NAME`, `transformers:NAME_OR_CONFIG`, `file.py:factory`."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import SynflowError, need, similar
from ..network.private_copy import arguments
from .built_in import MODELS, build
from .inputs import describe, example_from, first_linear, shape_of, vocabulary
from .own_files import MOST_SEEDS, failing, function_in, is_file, one_line
from .torchvision_cure import cure_torchvision
from .weights import check_weights, load_weights

LIBRARIES = {"timm": "vision", "torchvision": "vision", "transformers": "hf"}
Built = tuple[nn.Module, Any]


@dataclass(frozen=True)
class Source:
    """A model with an example of its inputs, and the settings to build it again."""

    spec: str
    model: nn.Module
    example: Any
    classes: int | None
    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments with which `load_model` builds this model again, except its weights."""
        return {"model": self.spec, "input": describe(self.example), "classes": self.classes, "seed": self.seed}


def load_model(
    spec: str, *, inputs: Sequence[str] = (), classes: int | None = None, seed: int = 0,
    weights: Path | None = None, device: str = "cpu",
) -> Source:  # fmt: skip
    """Build a model with weights from the seed (or from a file), and an example on which it was run once."""
    if not -MOST_SEEDS < seed < MOST_SEEDS:
        raise SynflowError(f"a seed is below {MOST_SEEDS:,}, got {seed}")
    torch.manual_seed(seed)
    prefix, _, name = spec.partition(":")
    if is_file(spec):
        model, example = _from_file(spec)
    elif prefix in LIBRARIES and name:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # our own error says what failed
        cure_torchvision()
        build_from = {"timm": _timm, "torchvision": _torchvision, "transformers": _transformers}[prefix]
        model, example = build_from(_imported(prefix), name, classes)
    else:
        model, example = _built_in(spec, inputs, classes, weights)
    if inputs:
        example = example_from(inputs, vocabulary(model))
    if example is None:
        example = first_linear(model)
    if example is None:
        raise SynflowError(
            f"the input of {spec} is not known; give its shape, batch first: --input 1x3x224x224 "
            "(or let the factory return the model and an example)"
        )
    if weights is not None:
        load_weights(model, weights)
    _check_runs(spec, model, example)
    try:
        return Source(spec, model.to(device), example, classes, seed)
    except (RuntimeError, AssertionError) as cause:
        raise SynflowError(f"device {device!r} cannot be used: {one_line(cause)}") from cause


def names_in(library: str) -> list[str]:
    """The names of the models of timm or torchvision."""
    cure_torchvision()
    module = _imported(library)
    return list((module if library == "timm" else need("torchvision.models", extra="vision")).list_models())


def _imported(library: str) -> Any:
    with failing(f"{library} is installed but cannot be imported", "; `synflow doctor` tries all packages"):
        return need(library, extra=LIBRARIES[library])


def _built_in(spec: str, inputs: Sequence[str], classes: int | None, weights: Path | None) -> Built:
    if spec not in MODELS:
        raise SynflowError(
            f"no model {spec!r}{similar(spec, MODELS)}; `synflow models` lists the built-in ones, others are "
            "timm:NAME, torchvision:NAME, transformers:NAME_OR_CONFIG and path/to/file.py:factory"
        )
    shape = shape_of(inputs[0]) if inputs else (1, 3, 32, 32)
    if weights is not None:
        # A stored network may name a huge input: the weights show this before any memory is allocated.
        with torch.device("meta"):
            check_weights(build(spec, classes=classes or 10, input_shape=shape[1:]), weights)
    try:
        return build(spec, classes=classes or 10, input_shape=shape[1:]), torch.ones(shape)
    except RuntimeError as cause:
        raise SynflowError(f"{spec} cannot be built for an input of {inputs[0]}: {one_line(cause)}") from cause


def _timm(library: Any, name: str, classes: int | None) -> Built:
    if name.split(".")[0] not in library.list_models():
        raise SynflowError(
            f"timm has no model {name!r}{similar(name, library.list_models())}; see `synflow models timm`"
        )
    options = {} if classes is None else {"num_classes": classes}
    model: nn.Module = library.create_model(name, pretrained=False, **options)
    size = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    return model, torch.ones(1, *size)


def _torchvision(library: Any, name: str, classes: int | None) -> Built:
    models = need("torchvision.models", extra="vision")
    if name not in models.list_models():
        raise SynflowError(
            f"torchvision has no model {name!r}{similar(name, models.list_models())}; see `synflow models torchvision`"
        )
    options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if name in ("googlenet", "inception_v3"):
        options |= {"init_weights": True}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        options |= {"weights_backbone": None}  # the default downloads weights
    model: nn.Module = models.get_model(name, weights=None, **options)
    if name in models.list_models(module=library.models.video):
        return model, torch.ones(1, 3, 16, 224 if "swin" in name or "mvit" in name else 112, 224)
    side = 299 if name == "inception_v3" else 224
    return model, torch.ones(1, 3, side, side)


def _transformers(library: Any, name: str, classes: int | None) -> Built:
    options = {} if classes is None else {"num_labels": classes}
    way_out = " Without the hub, give a type such as bert or gpt2, or a config.json of yours"
    with failing(f"transformers:{name} cannot be built", way_out):
        if Path(name).exists() or "/" in name:
            config = library.AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
        elif name in library.CONFIG_MAPPING:
            config = library.AutoConfig.for_model(name, **options)
        else:
            raise SynflowError(
                f"transformers has no model type {name!r}{similar(name, library.CONFIG_MAPPING)}; give a type, a "
                "config.json, or a name on the hub"
            )
        kind = _model_class(library, config)
        model: nn.Module = library.AutoModel.from_config(config) if kind is None else kind(config)
    return model, _transformers_example(model, config)


def _model_class(library: Any, config: Any) -> Any:
    """The class that a config names, or None if it is unknown; only model classes are ever called."""
    name = str((getattr(config, "architectures", None) or [""])[0])
    kind = getattr(library, name, None) if name else None
    if kind is not None and not (isinstance(kind, type) and issubclass(kind, library.PreTrainedModel)):
        raise SynflowError(
            f"its config names the architecture {name!r}, which is no model class of transformers; name one such as "
            "BertForMaskedLM, or leave the entry out"
        )
    return kind


def _transformers_example(model: nn.Module, config: Any) -> Any:
    """The inputs of most models of transformers; for others the user gives --input."""
    main = str(getattr(model, "main_input_name", "input_ids"))
    if main == "pixel_values":
        side = getattr(config, "image_size", None) or 224
        sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
        return {main: torch.ones(1, getattr(config, "num_channels", 3), *sides)}
    if main == "input_values":
        return {main: torch.ones(1, 4000)}
    texts = [f"{main}=1x8:int64"]
    if getattr(config, "is_encoder_decoder", False):
        texts.append("decoder_input_ids=1x8:int64")
    return example_from(texts, vocabulary(model))


def _from_file(spec: str) -> Built:
    with failing(f"{spec} fails"):
        made = function_in(spec)()
    model, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise SynflowError(
            f"{spec} returned {type(model).__name__}; a factory returns a torch.nn.Module, or one with an example"
        )
    return model, getattr(model, "example_input_array", None) if example is None else example


def _check_runs(spec: str, model: nn.Module, example: Any) -> None:
    """Run the model once, so that a wrong shape is an error before the actual work."""
    args, kwargs = arguments(example)
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(*args, **kwargs)
    except Exception as cause:
        shapes = ", ".join(describe(example)) or "none"
        if "custom C++ ops" in str(cause):
            raise SynflowError(
                f"{spec} needs compiled operators of torchvision (for boxes), which do not load beside this torch; "
                "install the build of torchvision that belongs to it"
            ) from cause
        raise SynflowError(
            f"{spec} does not run on an input of shape {shapes}: {one_line(cause)}. Give the right shape with --input"
        ) from cause
    finally:
        model.train(training)
