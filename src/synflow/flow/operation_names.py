"""Operations of torch by name: questions about a tensor, layers, other names, and advice on those without a rule."""

from __future__ import annotations

from typing import Any

# Operations whose answer is about the tensor, not its values: they run on the data as they are.
ABOUT = frozenset(
    """
    size dim numel stride nelement ndimension is_floating_point is_complex get_device is_contiguous element_size
    storage_offset __len__ __hash__ __repr__ __format__ data_ptr _is_view is_inference is_same_size new_zeros
    new_ones new_full new_empty zeros_like ones_like full_like empty_like new_tensor rand_like randn_like
    result_type can_cast promote_types register_hook requires_grad_ retain_grad is_tensor is_signed
    _has_compatible_shallow_copy_type
    """.split()
)
# Layers: what these send is the flow of their units.
WEIGHTED = frozenset(
    """
    linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    """.split()
)
# Operations whose shift is added last: nothing in them multiplies it.
SHIFTS_LAST = WEIGHTED | frozenset("add sub batch_norm layer_norm group_norm pad".split())
# Rules that offer their weight to the hooks of a pass before they read it.
LAYERS = WEIGHTED | {"matmul", "mm"}
ALIASES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "concat": "cat",
    "concatenate": "cat", "clip": "clamp", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "__add__": "add", "__radd__": "add", "__mul__": "mul", "__rmul__": "mul", "__sub__": "sub", "__rsub__": "rsub",
    "__truediv__": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv", "__pow__": "pow", "__neg__": "neg",
    "negative": "neg", "__matmul__": "matmul", "__rmatmul__": "rmatmul", "absolute": "abs", "__iadd__": "add_",
    "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_", "arctan": "atan", "__eq__": "eq", "__ne__": "ne",
    "__gt__": "gt", "__ge__": "ge", "__lt__": "lt", "__le__": "le", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "not_equal": "ne", "__invert__": "logical_not", "bitwise_not": "logical_not",
    "__and__": "logical_and", "__rand__": "logical_and", "__iand__": "logical_and", "bitwise_and": "logical_and",
    "__or__": "logical_or", "__ror__": "logical_or", "__ior__": "logical_or", "bitwise_or": "logical_or",
    "__xor__": "logical_xor", "__rxor__": "logical_xor", "bitwise_xor": "logical_xor", "__floordiv__": "div",
    "floor_divide": "div", "__rfloordiv__": "rdiv", "__mod__": "remainder", "special_expit": "sigmoid",
    "special_exp2": "exp2", "special_expm1": "expm1", "special_logit": "logit", "special_erf": "erf", "fix": "trunc",
    "special_softmax": "softmax", "special_log_softmax": "log_softmax", "special_logsumexp": "logsumexp",
}  # fmt: skip
# Operations that change the shape of a tensor and not its values, in place: there is nothing to write.
RESHAPES_IN_PLACE = frozenset("squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_".split())

_BRANCH = """
__bool__ item __float__ __int__ __index__ __complex__ tolist numpy __array__ any all equal allclose is_nonzero
""".split()
_WHOLE = """
long int short char byte bucketize searchsorted histc histogram bincount unique unique_consecutive one_hot digitize
""".split()
_MEMORY = "set_ resize_ resize_as_ as_strided_ swap_tensors".split()

_LINE = "    synflow.register_rule({name!r}, {rule})\n"


def advice(name: str, func: Any) -> str:
    """The way out, with a line to paste."""
    if name in _BRANCH:
        return (
            "The model decides in Python by values, and a flow has none. Decide by a shape or a setting, or answer for "
            "the flow: a rule for the comparison, such as\n"
            + _LINE.format(name="gt", rule="lambda function, x, *_: torch.ones_like(x, dtype=torch.bool)")
            + "or one for this operation. More under 'Python branches' in docs/howto/own-rule.md"
        )
    if name in _WHOLE:
        return (
            "It makes positions or counts of values, and a flow has none. Give the ones that the flow should see, such "
            "as\n" + _LINE.format(name=name, rule="lambda function, x, *_: torch.zeros_like(x, dtype=torch.long)")
        )
    if name in ("_pack_padded_sequence", "_pad_packed_sequence"):
        return (
            "Packed sequences have no stand-in. Prune with a forward pass that leaves the packing out (by a setting of "
            "the model): masks belong to the weights, and hold for packed batches as well"
        )
    if name in _MEMORY:
        return "It changes the memory of a tensor in place; write it with reshape, view or as_strided"
    if name.startswith("linalg_") or name in ("inverse", "det", "svd", "qr", "cholesky", "matrix_exp"):
        return (
            "A decomposition has no positive stand-in. If it is a scale and not a path, its input may stand in:\n"
            + _LINE.format(name=name, rule="synflow.rules.identity")
            + f"or pass a function of the same signature that returns a positive tensor of the right shape ({func!r})"
        )
    return (
        "If flow passes it like an activation, register one with\n"
        + _LINE.format(name=name, rule="synflow.rules.identity")
        + "or pass a function rule(function, *args, **kwargs) that returns its positive stand-in "
        f"(the operation is {func!r})"
    )
