"""The operations that compaction knows, by what they do; names are ATen's, without the underscore of in-place forms."""

from __future__ import annotations

import functools
from typing import Any

import torch

# Elements only move.
VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "flatten", "unflatten"}
PERMUTATIONS = {"permute", "transpose", "t"}
PARTS = {"slice", "select", "split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes", "unbind", "chunk"}
SHIFTS = {"roll", "flip"}  # all dimensions stay where they are
OTHERS = {"repeat", "constant_pad_nd", "pixel_shuffle", "pixel_unshuffle", "im2col", "unfold", "expand", "cat", "stack"}
MOVES = VIEWS | PERMUTATIONS | PARTS | SHIFTS | OTHERS
LOOKUPS = {"index", "index_select", "embedding"}  # lines of a tensor, by numbers that may come from data

# Element by element, where torch does not say so. Copies, and what may count as one; functions with a slope that is
# learnt or random; numbers that do not depend on what was there.
COPIES = {"clone", "_to_copy", "alias", "detach", "lift_fresh", "lift_fresh_copy", "native_dropout"}
SLOPES = {"_prelu_kernel", "rrelu_with_noise"}
FILLED = {"bernoulli", "uniform", "normal", "exponential", "random", "fill", "zero", "copy", "zeros_like", "ones_like",
          "full_like", "empty_like", "rand_like", "randn_like"}  # fmt: skip
_UNTAGGED = COPIES | SLOPES | FILLED | {"hardswish", "log_sigmoid_forward", "floor_divide", "masked_fill", "rsub"}

FACTORIES = {"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "rand", "randn"}
# The second dimension, channels, is kept; positions are mixed.
POOLS = {f"{kind}{rank}d{form}" for rank in (1, 2, 3) for form in ("", "_with_indices", "_aa") for kind in (
    "avg_pool", "max_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "adaptive_max_pool", "upsample_nearest",
    "upsample_linear", "upsample_bilinear", "upsample_trilinear", "upsample_bicubic", "_upsample_bilinear",
    "_upsample_bicubic", "reflection_pad", "replication_pad")}  # fmt: skip
BATCH_NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
               "_batch_norm_with_update", "_batch_norm_no_update", "cudnn_batch_norm", "batch_norm"}  # fmt: skip
REDUCTIONS = {"sum", "mean", "amax", "amin", "linalg_vector_norm", "norm", "var", "std", "var_mean", "std_mean",
              "logsumexp", "prod"}  # fmt: skip
REDUCED_ONCE = {"sum", "mean", "amax", "amin", "linalg_vector_norm"}  # to one tensor, zeros to zero
ALONG = {"_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"}
MIXING_NORMS = {"native_layer_norm", "native_group_norm"}
MIXING = POOLS | REDUCTIONS | ALONG | MIXING_NORMS | SHIFTS  # the size of some dimensions counts
# Along one dimension elements are taken from, or added up at, places that a tensor of numbers says.
SCATTERED = {"gather", "index_add", "scatter_add"}
# Sums of products: the names of both factors, and of what is added.
OPERANDS = {"mm": ("self", "mat2", ""), "addmm": ("mat1", "mat2", "self"), "bmm": ("self", "mat2", ""),
            "baddbmm": ("batch1", "batch2", "self"), "convolution": ("input", "weight", "bias")}  # fmt: skip


@functools.cache
def elementwise(name: str, op: Any) -> bool:
    """Does an operation combine its tensors element by element, broadcasting? `max` of two tensors does, of one not."""
    if op is None or name in _UNTAGGED:
        return name in _UNTAGGED
    plain = getattr(getattr(torch.ops.aten, name, None), op._schema.overload_name or "default", op)
    return any(torch.Tag.pointwise in form.tags for form in (op, plain))  # some in-place forms are not tagged
