"""Multi-head attention whose heads, and the channels of their values, need not fill the width of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import SynflowError

# Indices kept along a dimension; where they differ between the groups of a convolution, one list per group.
Indices = list[int] | list[list[int]]


class UnknownWeights(Tensor):
    """Stands for the weights of an attention that has lost heads: reading it raises an error."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise SynflowError(
            "the attention weights are not known: compact has removed heads, since nothing read them in its example. "
            "Compact the dense model again with an example for which it returns the attention weights; then heads stay"
        )


class CompactAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with fewer heads, or fewer value channels in each: the same parameters, only smaller.

    `nn.MultiheadAttention` needs heads that fill the width of the model, so no head can be removed alone. Here
    `num_heads`, `head_dim` and `value_dim` are free. `kept_heads` of the `dense_heads` remain: masks of attention may
    have one part per dense head.
    """

    value_dim: int
    dense_heads: int
    kept_heads: list[int]

    @staticmethod
    def fits(module: nn.MultiheadAttention) -> bool:
        """Whether a compact attention does the same: it knows no extra keys (`bias_k`, `add_zero_attn`)."""
        return (
            type(module).forward in (nn.MultiheadAttention.forward, CompactAttention.forward)
            and module.bias_k is None
            and not module.add_zero_attn
        )

    @staticmethod
    def convert(module: nn.MultiheadAttention) -> CompactAttention:
        """Turn an attention into a compact one of the same sizes, in place."""
        if isinstance(module, CompactAttention):
            return module
        module.__class__ = CompactAttention
        assert isinstance(module, CompactAttention)
        module.value_dim = module.head_dim
        module.dense_heads, module.kept_heads = module.num_heads, list(range(module.num_heads))
        # PyTorch uses its fused encoder layer, which takes the usual sizes for granted, only where this is true.
        module._qkv_same_embed_dim = False
        return module

    def resize(self, kept: Mapping[str, Mapping[int, Indices]]) -> None:
        """Take the sizes from the weights, which were cut to these indices."""
        width = self.num_heads * self.head_dim
        fused = self.in_proj_weight is not None
        every = list(range(2 * width + self.num_heads * self.value_dim if fused else width))
        rows = [int(str(row)) for row in kept.get("in_proj_weight" if fused else "q_proj_weight", {}).get(0, every)]
        heads = sorted({row // self.head_dim for row in rows if row < width})
        values = sum(row >= 2 * width for row in rows) if fused else len(self.v_proj_weight)
        self.kept_heads = [self.kept_heads[head] for head in heads]
        self.num_heads, self.value_dim = len(heads), values // len(heads)
        self.embed_dim = self.out_proj.weight.shape[0]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.is_nested:
            return self._nested(query), None
        if is_causal and key_padding_mask is None and not need_weights:
            attn_mask = None  # torch takes the hint in place of the mask
        gone = need_weights and len(self.kept_heads) < self.dense_heads
        need_weights = need_weights and not gone
        batched = query.dim() == 3
        if not batched:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = self._projected(query, key, value)
        bias = self._bias(q, k, key_padding_mask, attn_mask, is_causal and attn_mask is None and need_weights)
        scale, dropout = self.head_dim**-0.5, self.dropout if self.training else 0.0
        probabilities: Tensor | None = None
        if need_weights:
            products = (q * scale) @ k.transpose(-2, -1)
            probabilities = F.dropout((products if bias is None else products + bias).softmax(-1), dropout)
            mixed = probabilities @ v
        else:
            causal = is_causal and bias is None
            mixed = F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=dropout, is_causal=causal, scale=scale
            )
        result = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if probabilities is not None:
            probabilities = probabilities.mean(1) if average_attn_weights else probabilities
            probabilities = probabilities if batched else probabilities.squeeze(0)
        elif gone:
            probabilities = torch.empty(0).as_subclass(UnknownWeights)
        if not batched:
            return result.squeeze(0), probabilities
        return (result if self.batch_first else result.transpose(0, 1)), probabilities

    def _projected(self, *inputs: Tensor) -> list[Tensor]:
        """Queries, keys and values as (batch, head, position, channel)."""
        heads, size = self.num_heads, self.head_dim
        sizes = [heads * size, heads * size, heads * self.value_dim]
        weights: Sequence[Tensor] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.split(sizes)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.split(sizes)
        found = [F.linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True)]
        return [x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in found]

    def _nested(self, x: Tensor) -> Tensor:
        """Self-attention of sequences of different lengths, as torch's encoder passes them on in eval mode."""
        lengths = [len(line) for line in x.unbind()]
        padded = x.to_padded_tensor(0.0)
        places = torch.arange(padded.shape[1], device=padded.device)
        padding = places >= torch.tensor(lengths, device=padded.device)[:, None]
        result, _ = self(padded, padded, padded, padding, need_weights=False)
        return torch.nested.as_nested_tensor([line[:n] for line, n in zip(result, lengths, strict=True)])

    def _bias(
        self, q: Tensor, k: Tensor, padding: Tensor | None, attn_mask: Tensor | None, causal: bool
    ) -> Tensor | None:
        """What is added to the products of queries and keys: minus infinity where a position is masked."""
        bias: Tensor | None = None
        if causal:
            attn_mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        if attn_mask is not None:
            bias = _additive(attn_mask, q)
            if bias.dim() == 3:  # (batch * heads, queries, keys)
                bias = bias.unflatten(0, (q.shape[0], -1))
                if len(self.kept_heads) < self.dense_heads:
                    bias = bias[:, self.kept_heads]
        if padding is not None:
            padded = _additive(padding, q)[:, None, None, :]
            bias = padded if bias is None else bias + padded
        return bias


def open_attentions(model: nn.Module) -> frozenset[str]:
    """Turn every attention into a compact one, whose operations can be followed; returns the paths of these modules."""
    found = []
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and CompactAttention.fits(module):
            CompactAttention.convert(module)
            found.append(path)
    return frozenset(found)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill_(mask, float("-inf"))
    return mask.to(like.dtype)
