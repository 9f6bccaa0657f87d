"""Attention: products stay products, so query, key and value each carry the whole flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..dispatch import SOURCES, Rule, as_input, composite
from ..tensor import Flow, as_flow
from .basic import product


def scaled_dot_product(
    function: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q k' * scale + mask) v, with the stand-ins of product and softmax."""
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    logits = torch.matmul(query, key.transpose(-2, -1)) * (query.size(-1) ** -0.5 if scale is None else abs(scale))
    if is_causal:
        allowed = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        logits = logits.masked_fill(~allowed, float("-inf"))
    if attn_mask is not None:
        logits = _masked(logits, attn_mask)
    return torch.matmul(torch.softmax(logits, -1), value)


def _masked(logits: Any, mask: Any) -> Any:
    if not isinstance(mask, Flow) and mask.dtype == torch.bool:
        return logits.masked_fill(~mask, float("-inf"))
    return logits + mask


def multi_head(
    function: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """`nn.MultiheadAttention`, written out: three projections, heads, attention, output projection."""
    batched = query.dim() == 3
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if query is key and key is value and not use_separate_proj_weight:
        q, k, v = F.linear(query, in_proj_weight, in_proj_bias).chunk(3, -1)  # one layer, with a thin gradient
    else:
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    batch = q.size(1)
    if bias_k is not None:
        k = torch.cat([k, bias_k.expand(-1, batch, -1)])
        v = torch.cat([v, bias_v.expand(-1, batch, -1)])
    target, source, width = q.size(0), k.size(0), q.size(2)

    def heads(x: Any, length: int) -> Any:
        return x.reshape(length, batch, num_heads, -1).permute(1, 2, 0, 3)

    # (batch, heads, length, head width); rows and columns appended by bias_k stay unmasked
    logits = torch.matmul(heads(q, target), heads(k, source).transpose(-2, -1)) * (width // num_heads) ** -0.5
    if attn_mask is not None:
        mask = attn_mask if attn_mask.dim() == 2 else attn_mask.reshape(batch, num_heads, target, -1)
        logits = _masked_columns(logits, mask)
    if key_padding_mask is not None:
        logits = _masked_columns(logits, key_padding_mask[:, None, None, :])
    weights_out = torch.softmax(logits, -1)
    mixed = torch.matmul(weights_out, heads(v, source)).permute(2, 0, 1, 3).reshape(target, batch, -1)
    output = F.linear(mixed, out_proj_weight, out_proj_bias)
    if not batched:
        output, weights_out = output.squeeze(1), weights_out.squeeze(0)
    if not need_weights:
        return output, None
    return output, weights_out.mean(-3) if average_attn_weights else weights_out


def _masked_columns(logits: Any, mask: Tensor) -> Any:
    """Apply a mask (True or very negative = blocked, else added) to the columns it covers."""
    missing = logits.size(-1) - mask.size(-1)
    if missing:
        mask = F.pad(mask, (0, missing), value=0)
    return logits.masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else logits + mask


def embedding(function: Callable[..., Any], ids: Tensor, table: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Looking up an embedding starts a flow: the rows, with absolute values."""
    rows = F.embedding(ids, table)
    if not rows.is_floating_point():
        return rows
    return as_input(rows.detach().abs())


def selected_embedding(function: Callable[..., Any], ids: Tensor, table: Flow, *args: Any, **kwargs: Any) -> Any:
    """An embedding that is itself pruned."""
    return as_flow(F.embedding(ids, table), table.exponent, table.degrees)


def selected_bag(function: Callable[..., Any], ids: Tensor, table: Flow, *args: Any, **kwargs: Any) -> Any:
    """A bag of embeddings that is itself pruned."""
    return product(lambda rows: F.embedding_bag(ids, rows, *args, **kwargs), table)


def embedding_bag(function: Callable[..., Any], ids: Tensor, table: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A bag of embeddings starts a flow: the bag of absolute rows."""
    kwargs.pop("max_norm", None)
    return as_input(F.embedding_bag(ids, table.detach().abs(), *args, **kwargs))


SOURCES["embedding"] = embedding
SOURCES["embedding_bag"] = embedding_bag

TABLE: dict[str, Rule] = {
    "scaled_dot_product_attention": composite(scaled_dot_product),
    "multi_head_attention_forward": composite(multi_head),
    "embedding": selected_embedding,
    "embedding_bag": selected_bag,
}
