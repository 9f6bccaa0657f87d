"""Attention: products stay products, so query, key and value each carry the whole flow. Embeddings start a flow."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dispatch import SOURCES, Function, Rule, flow_pass, stand_in
from ..tensor import Flow, as_flow
from .basic import product


def scaled_dot_product(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """softmax(q k' * scale + mask) v, with the stand-ins of product and softmax."""
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    later: Any = None
    if is_causal:
        later = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).triu(1)
    if attn_mask is not None and not isinstance(attn_mask, Flow) and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask  # here True is what may be seen
    return _attended(query, key, value, query.size(-1) ** -0.5 if scale is None else abs(scale), later, attn_mask)[0]


def _attended(q: Any, k: Any, v: Any, scale: float, *masks: Any) -> tuple[Any, Any]:
    """What attention returns, and its weights; a mask is True or very negative where it blocks, else it is added."""
    logits = torch.matmul(q, k.transpose(-2, -1)) * scale
    for mask in masks:
        if mask is not None:
            blocks = not isinstance(mask, Flow) and mask.dtype == torch.bool
            logits = logits.masked_fill(mask, float("-inf")) if blocks else logits + mask
    weights = torch.softmax(logits, -1)
    return torch.matmul(weights, v), weights


def multi_head(*args: Any, **kwargs: Any) -> Any:
    """`nn.MultiheadAttention`, written out: three projections, heads, attention, output projection."""
    bound = signature(F.multi_head_attention_forward).bind(*args, **kwargs)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    mask, padding, batched = given.attn_mask, given.key_padding_mask, given.query.dim() == 3
    if not batched:
        given.query, given.key, given.value = (x.unsqueeze(1) for x in (given.query, given.key, given.value))
        padding = None if padding is None else padding.unsqueeze(0)
    q, k, v = _projected(given)
    (target, batch, width), heads = q.shape, given.num_heads
    mask = mask if mask is None or mask.dim() == 2 else mask.reshape(batch, heads, target, -1)
    padding = None if padding is None else padding[:, None, None, :]
    if given.bias_k is not None:  # one more key, which no mask hides
        k = torch.cat([k, given.bias_k.expand(-1, batch, -1)])
        v = torch.cat([v, given.bias_v.expand(-1, batch, -1)])
        mask, padding = (None if m is None else F.pad(m, (0, 1), value=0) for m in (mask, padding))
    # (batch, heads, length, head width)
    q, k, v = (x.reshape(x.size(0), batch, heads, -1).permute(1, 2, 0, 3) for x in (q, k, v))
    mixed, weights = _attended(q, k, v, (width // heads) ** -0.5, mask, padding)
    mixed = mixed.permute(2, 0, 1, 3).reshape(target, batch, -1)
    output = F.linear(mixed, given.out_proj_weight, given.out_proj_bias)
    if not batched:
        output, weights = output.squeeze(1), weights.squeeze(0)
    if not given.need_weights:
        return output, None
    return output, weights.mean(-3) if given.average_attn_weights else weights


def _projected(given: Any) -> Any:
    """Queries, keys and values."""
    inputs, separate = (given.query, given.key, given.value), given.use_separate_proj_weight
    if given.query is given.key and given.key is given.value and not separate:
        # One layer, with a thin gradient.
        return F.linear(given.query, given.in_proj_weight, given.in_proj_bias).chunk(3, -1)
    biases = (None, None, None) if given.in_proj_bias is None else given.in_proj_bias.chunk(3)
    own = (given.q_proj_weight, given.k_proj_weight, given.v_proj_weight)
    weights = own if separate else given.in_proj_weight.chunk(3)
    return [F.linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True)]


def embedding(function: Function, ids: Tensor, table: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Looking up an embedding starts a flow: the rows, with absolute values; a pruned one has a flow already."""
    rows = F.embedding(ids, table)
    if isinstance(table, Flow):
        return as_flow(rows, table.exponent, table.degrees)
    return flow_pass().started(rows.detach().abs()) if rows.is_floating_point() else rows


def embedding_bag(function: Function, ids: Tensor, table: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A bag of embeddings, see `embedding`: the bag of absolute rows."""
    if isinstance(table, Flow):
        return product(lambda rows: F.embedding_bag(ids, rows, *args, **kwargs), table)
    kwargs.pop("max_norm", None)
    return flow_pass().started(F.embedding_bag(ids, table.detach().abs(), *args, **kwargs))


_EMBEDDINGS: dict[str, Rule] = {"embedding": embedding, "embedding_bag": embedding_bag}
SOURCES.update(_EMBEDDINGS)

TABLE: dict[str, Rule] = {
    "scaled_dot_product_attention": stand_in(scaled_dot_product),
    "multi_head_attention_forward": stand_in(multi_head),
    **_EMBEDDINGS,
}
