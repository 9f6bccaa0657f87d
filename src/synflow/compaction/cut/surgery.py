"""Cutting a model down to the indices that are kept: parameters, buffers, and the sizes that modules remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import SynflowError
from ...support.private_torch import ConvNd, NormBase
from ..record.tape import tensors
from .attention import CompactAttention, Indices

Kept = Mapping[str, Mapping[int, Indices]]


def cut(tensor: Tensor, kept: Mapping[int, Indices]) -> Tensor:
    """The part of a tensor that is kept.

    >>> cut(torch.arange(6).reshape(2, 3), {0: [1], 1: [0, 2]})
    tensor([[3, 5]])
    >>> cut(torch.arange(6).reshape(2, 3), {1: [[0, 1], [1, 2]]})  # two groups, one row each
    tensor([[0, 1],
            [4, 5]])
    """
    for dim, indices in sorted(kept.items()):
        if indices and isinstance(indices[0], list):
            tensor = torch.cat([
                rows.index_select(dim, torch.tensor(line, device=tensor.device))
                for rows, line in zip(tensor.chunk(len(indices)), indices, strict=True)
            ])  # fmt: skip
        else:
            tensor = tensor.index_select(dim, torch.tensor(indices, device=tensor.device))
    return tensor


def paste(part: Tensor, whole: Tensor, kept: Mapping[int, Indices]) -> Tensor:
    """A copy of the whole in which the kept elements come from the part.

    >>> paste(torch.tensor([[7, 8]]), torch.zeros(2, 3, dtype=torch.long), {0: [1], 1: [0, 2]})
    tensor([[0, 0, 0],
            [7, 0, 8]])
    """
    places = cut(torch.arange(whole.numel()).reshape(whole.shape), kept).to(whole.device)
    if places.shape != part.shape:
        raise SynflowError(f"a tensor of shape {tuple(part.shape)} does not fit its place {tuple(places.shape)}")
    flat = whole.detach().reshape(-1).clone()
    flat[places.reshape(-1)] = part.detach().to(flat).reshape(-1)
    return flat.reshape(whole.shape)


def shrink(model: nn.Module, kept: Kept, attributes: Mapping[str, Mapping[str, Any]]) -> None:
    """Cut a model in place, and set the attributes given by module path."""
    names = {id(tensor): name for name, tensor in tensors(model).items() if name in kept}
    parts: dict[int, Tensor] = {}  # a tied weight stays tied
    for module in model.modules():
        touched: dict[str, Mapping[int, Indices]] = {}
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for slots in tables:
            for own, tensor in slots.items():
                if (name := names.get(id(tensor))) is not None:
                    if id(tensor) not in parts:
                        parts[id(tensor)] = _part(tensor, kept[name])
                    slots[own], touched[own] = parts[id(tensor)], kept[name]
        if touched:
            _remember(module, touched)
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and CompactAttention.fits(module):
            prefix = f"{path}." if path else ""
            cuts = {own: kept[prefix + own] for own, _ in module.named_parameters() if prefix + own in kept}
            if cuts:
                CompactAttention.convert(module).resize(cuts)
    for path, values in attributes.items():
        for name, value in values.items():
            setattr(model.get_submodule(path), name, value)


def _part(tensor: Tensor, kept: Mapping[int, Indices]) -> Tensor:
    part = cut(tensor.detach(), kept)
    if part.dim() in (4, 5) and tensor.stride(1) == 1 and not tensor.is_contiguous():
        part = part.contiguous(memory_format=torch.channels_last if part.dim() == 4 else torch.channels_last_3d)
    return nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part


def _remember(module: nn.Module, kept: Mapping[str, Mapping[int, Indices]]) -> None:
    """Set the sizes that a module remembers to those of its weights."""
    any_module: Any = module
    if isinstance(module, ConvNd):
        transposed = module.transposed
        rows = kept.get("weight", {}).get(0)
        if module.groups > 1 and rows is not None:
            per_group = (module.in_channels if transposed else module.out_channels) // module.groups
            module.groups = len({int(row) // per_group for row in rows})  # type: ignore[arg-type]
        outer, inner = module.weight.shape[:2]
        module.in_channels = outer if transposed else inner * module.groups
        module.out_channels = inner * module.groups if transposed else outer
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, NormBase):
        module.num_features = len(any_module.running_mean if module.weight is None else module.weight)
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
    elif isinstance(module, nn.RNNBase):
        gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
        module.input_size = any_module.weight_ih_l0.shape[1]
        module.hidden_size = any_module.weight_hh_l0.shape[0] // gates
        if module.proj_size:
            module.proj_size = any_module.weight_hh_l0.shape[1]
        module._init_flat_weights()
    elif hasattr(module, "nf") and hasattr(module, "nx"):  # the transposed linear layer of GPT-2
        any_module.nx, any_module.nf = any_module.weight.shape
