"""The selection of prunable parameters, their names, and their places in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from ..errors import SynflowError, brief, check_function
from ..support.private_torch import (
    SpectralNormHook,
    SpectralNormParametrization,
    WeightNormHook,
    WeightNormParametrization,
)
from .shared_memory import check_unshared
from .wrappers import unwrap

Select: TypeAlias = "str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None"

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Layers whose weights are pruned by default, and the attributes of these weights.
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS: tuple[tuple[tuple[type[nn.Module], ...], tuple[str, ...]], ...] = (
    ((nn.Linear, nn.Bilinear, *_CONVOLUTIONS), ("weight",)),
    ((nn.MultiheadAttention,), ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")),
    ((nn.RNNBase, nn.RNNCellBase), ("weight_*",)),
)


def prunable(model: nn.Module, select: Select = None, protect: str | Iterable[str] = ()) -> dict[str, nn.Parameter]:
    """The parameters that may be pruned, by name, each tied tensor once under its first name.

    By default the weights of linear, convolution, attention and recurrent layers; no biases, norms, embeddings (nor
    what is tied to one), nor weight-normed layers, whose rows cannot be all zero (remove the norm first). Patterns
    match a parameter's name or the path of a module above it, and choose among the parameters with two or more
    dimensions; one that matches only vectors (`"bn1"`, `"*.bias"`) chooses these. A predicate
    `(name, parameter) -> bool` sees every floating parameter.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    >>> list(prunable(model)), list(prunable(model, protect="2"))
    (['0.weight', '2.weight'], ['0.weight'])
    """
    model = unwrap(model)
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if isinstance(parameter, UninitializedParameter) or parameter.is_floating_point()
    }
    if select is None:
        wanted = _default_names(model)
    elif callable(select):
        check_function("select", select, "(name, parameter) -> bool", ", or a pattern of names, or a list of them")
        wanted = {name for name, p in parameters.items() if select(name, p)}
    else:
        wanted = _matching(parameters, select, "select", rank=2)
    wanted &= parameters.keys()
    left = wanted - _matching(parameters, protect, "protect")
    if wanted and not left:
        raise SynflowError(
            f"{type(model).__name__} has nothing to prune: of {len(wanted)} weights that may be pruned all are "
            f"protected by protect={protect!r}; protect fewer, or name others with select=[...]"
        )
    chosen = {name: p for name, p in parameters.items() if name in left}
    for name, parameter in chosen.items():
        _check_kind(name, parameter)
        check_separate(name, parameter)
    check_unshared(chosen, parameters)
    _refuse_weight_norm(model, chosen)
    chosen = {name: p for name, p in chosen.items() if p.numel()}
    if not chosen:
        raise SynflowError(
            f"{type(model).__name__} has nothing to prune: of {len(parameters)} parameters none is the weight of a "
            "linear, convolution, attention or recurrent layer; name some with select=[...]"
        )
    return chosen


def _check_kind(name: str, parameter: nn.Parameter) -> None:
    """Refuse weights in a storage format that does not support arithmetic."""
    if isinstance(parameter, UninitializedParameter):
        raise SynflowError(f"{name} has no shape yet (a lazy layer); run the model once, then prune")
    if parameter.is_meta:
        raise SynflowError(f"{name} is on the meta device and has no values; materialise the model, then prune")
    if parameter.layout is not torch.strided:
        raise SynflowError(
            f"{name} is a sparse tensor ({parameter.layout}); prune the dense weight: "
            "nn.Parameter(weight.detach().to_dense())"
        )
    if parameter.dtype not in _TYPES:
        raise SynflowError(
            f"{name} has the type {parameter.dtype}, in which torch does not compute; prune in another and convert "
            "afterwards: nn.Parameter(weight.detach().to(torch.bfloat16))"
        )


def _default_names(model: nn.Module) -> set[str]:
    first = {id(p): name for name, p in model.named_parameters()}
    names, embeddings = set(), set()
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            embeddings |= {first[id(p)] for p in module.parameters(recurse=False)}
        stored = [_stored(module, attribute) for attribute in _weight_attributes(module)]
        names |= {first[id(parameter)] for parameter in stored if id(parameter) in first}
    return names - embeddings - weight_normed(model).keys()


def _weight_attributes(module: nn.Module) -> list[str]:
    for classes, patterns in _LAYERS:
        if isinstance(module, classes):
            names = list(module._parameters)
            names += list(getattr(module, "parametrizations", {}))
            # Old-style spectral norm keeps the tensor under another name.
            names += [name.removesuffix("_orig") for name in module._parameters if name.endswith("_orig")]
            return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    # transformers' Conv1D is a linear layer with the weight transposed, and no subclass of nn.Linear.
    if type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        return ["weight"]
    return []


def _stored(module: nn.Module, attribute: str) -> Tensor | None:
    """The parameter behind an attribute; for a parametrized one (weight norm, masks) the tensor it is computed from."""
    parametrized = getattr(module, "parametrizations", {})
    if attribute not in parametrized:
        return module._parameters.get(attribute, module._parameters.get(f"{attribute}_orig"))
    # Weight norm keeps two tensors, "original0" and "original1"; neither is the weight.
    original: Tensor | None = parametrized[attribute]._parameters.get("original")
    return original


def _under_norm(
    model: nn.Module, parametrization: type[Any], hook: type[Any], names: str, older: str
) -> Iterator[tuple[str, str, str, bool]]:
    """Parameters from which a norm of torch computes a weight: name, path of the layer, the weight, if by a hook."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for weight, chain in getattr(module, "parametrizations", {}).items():
            if any(isinstance(step, parametrization) for step in chain):
                yield from ((f"{prefix}parametrizations.{weight}.{n}", path, weight, False) for n in names.split())
        for found in module._forward_pre_hooks.values():
            if isinstance(found, hook):
                yield from ((f"{prefix}{found.name}_{end}", path, found.name, True) for end in older.split())


def weight_normed(model: nn.Module) -> dict[str, tuple[str, str]]:
    """The parameters from which weight norm computes a weight: by name, the layer's path and the call to remove it."""
    found = _under_norm(model, WeightNormParametrization, WeightNormHook, "original0 original1", "g v")
    utils, new, old = "torch.nn.utils.", "parametrize.remove_parametrizations", "remove_weight_norm"
    return {name: (path, f"{utils}{old if hook else new}(layer, {weight!r})") for name, path, weight, hook in found}


def spectral_normed(model: nn.Module) -> set[str]:
    """The parameters that a spectral norm divides by their largest singular value."""
    found = _under_norm(model, SpectralNormParametrization, SpectralNormHook, "original", "orig")
    return {name for name, *_ in found}


def _refuse_weight_norm(model: nn.Module, chosen: Iterable[str]) -> None:
    normed = weight_normed(model)
    for name in chosen:
        if name in normed:
            path, call = normed[name]
            raise SynflowError(
                f"{name} belongs to a weight norm, which would divide a row that is all pruned by its length of zero; "
                f"end the norm before pruning ({call} with layer = model.get_submodule({path!r})), or leave it out: "
                f"protect={path!r}"
            )


def _matching(
    parameters: dict[str, nn.Parameter], patterns: str | Iterable[str], option: str, rank: int = 0
) -> set[str]:
    """The names that patterns match; if a pattern matches parameters of at least this rank, only these."""
    single = isinstance(patterns, (str, Tensor)) or not isinstance(patterns, Iterable)
    given: list[Any] = [patterns] if single else list(patterns)
    if not all(isinstance(pattern, str) for pattern in given):
        also = ", or a function (name, parameter) -> bool" if option == "select" else ""
        raise SynflowError(f"{option} takes a pattern of names or a list of them{also}, got {brief(patterns)}")
    # A parameter's name and the paths of the modules above it.
    paths = {name: list(accumulate(name.split("."), "{}.{}".format)) for name in parameters}
    matched: set[str] = set()
    for pattern in given:
        hits = {name for name in parameters if any(fnmatchcase(path, pattern) for path in paths[name])}
        if not hits:
            examples = ", ".join(list(parameters)[:3])
            raise SynflowError(
                f"{option}: the pattern {pattern!r} matches no parameter; names look like {examples}; "
                "a module's path stands for all below it, * for any part"
            )
        # The number of dimensions of a lazy layer's parameter is not known yet.
        lazy = {name for name in hits if isinstance(parameters[name], UninitializedParameter)}
        matched |= {name for name in hits if name in lazy or parameters[name].dim() >= rank} or hits
    return matched


def slots(model: nn.Module, names: Iterable[str]) -> dict[str, list[tuple[nn.Module, str]]]:
    """Every place where each named parameter is registered (a tied tensor has several)."""
    wanted = {id(p): name for name, p in model.named_parameters() if name in set(names)}
    found: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in wanted.values()}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in wanted:
                found[wanted[id(parameter)]].append((module, attribute))
    return found


def check_separate(name: str, weight: Tensor) -> None:
    """Refuse a weight whose entries share memory (an expanded tensor): one entry cannot be zeroed alone."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    if weight.numel() > extent:
        raise SynflowError(
            f"{name}: entries of this weight share memory (it was expanded), so single ones cannot be pruned; give "
            "each its own: nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))"
        )


def check_finite(name: str, weight: Tensor) -> None:
    """Refuse a parameter with nan or inf: no score can rank such weights, and elsewhere they would count as zero."""
    if bool(torch.isfinite(weight.sum())):
        return  # one pass that writes nothing; a sum may also overflow
    finite = torch.isfinite(weight)
    if not bool(finite.all()):
        count = weight.numel() - int(finite.sum())
        raise SynflowError(f"{name}: {count} of {weight.numel()} values are nan or inf; initialise the model again")
