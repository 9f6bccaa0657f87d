"""The table of positive stand-ins: how flow passes each operation, whoever calls it.

A mode sees every torch operation of a forward pass. Operations that touch no flow run as they are (positions, masks,
constants); the others are looked up by name in `RULES`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn

from ..engine import fold_positions as folding
from ..engine.factored_gradient import Sensitivity
from ..engine.factored_layers import widened
from ..errors import SynflowError
from ..support.torch_modes import SafeMode
from .tensor import Degrees, Flow, as_flow, flows, mapped, scaled

Rule: TypeAlias = Callable[..., Any]


class NoRuleError(SynflowError):
    """The model uses an operation for which no stand-in is known."""


@dataclass
class Arithmetic:
    """How a pass computes: on real magnitudes, or just on whether there is a path.

    `shifts` counts vectors that are added on the way (biases, norm shifts); `sources` counts other constants that enter
    (class tokens, position tables). Without both, only terms that start at inputs alone remain. Where `inputs` is a
    list, the inputs are collected there and followed back. With `shared`, the two sides of a gate or of attention share
    the flow between them, so that weights before many gates do not count 2, 4, 8, ... times. `divide` applies
    divisors; a pass that counts weights per term leaves them out. `saturate` computes in the booleans: one where there
    is flow, zero where there is none.

    What a pass finds out: `had_shifts`, whether shifts counted; `bent`, whether a maximum or a divisor came after one,
    so that scores may be smaller than without shifts; `loose`, whether flow came from a source or a stand-in held part
    of it fixed (a gate that reads the state), so that the union bound needs a second look; `unit_flows`, what leaves
    the units of the layers in `watched` (by the id of their weight), except for `untapped` weights that were also used
    otherwise; `captured`, where weight gradients go that are left as factors (by the id of their weight); `notes` for
    the certificate. `constants` are what rules make of parameters that no pass changes. With `folding`, positions of an
    image that see the same are computed once.
    """

    shifts: bool = True
    sources: bool = True
    divide: bool = True
    saturate: bool = False
    had_shifts: bool = False
    bent: bool = False
    loose: bool = False
    notes: dict[str, None] = field(default_factory=dict)
    inputs: list[Tensor] | None = None
    watched: dict[int, str] | None = None
    unit_flows: dict[str, Tensor] = field(default_factory=dict)
    untapped: set[str] = field(default_factory=set)
    captured: dict[int, Sensitivity] | None = None
    shared: bool = False
    constants: dict[Any, Any] = field(default_factory=dict)
    folding: bool = False


class _Active(threading.local):
    mode: LinearizationMode | None = None


_ACTIVE = _Active()

RULES: dict[str, Rule] = {}
_USER_RULES: dict[str, Rule] = {}

# Operations whose answer is about the tensor, not its values: they run on the data as they are.
ABOUT = frozenset(
    """
    size dim numel stride nelement ndimension is_floating_point is_complex get_device is_contiguous element_size
    storage_offset __len__ __hash__ __repr__ __format__ data_ptr _is_view is_inference is_same_size new_zeros
    new_ones new_full new_empty zeros_like ones_like full_like empty_like new_tensor rand_like randn_like
    is_nonzero result_type can_cast promote_types register_hook requires_grad_ retain_grad is_tensor is_signed
    """.split()
)
# Layers: what these send is the flow of their units.
WEIGHTED = frozenset(
    """
    linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    """.split()
)
# Rules that can leave a weight gradient as factors.
CAPTURING = WEIGHTED | {"matmul", "mm"}
HALF = (torch.float16, torch.bfloat16)
ALIASES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "concat": "cat",
    "concatenate": "cat", "clip": "clamp", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "__add__": "add", "__radd__": "add", "__mul__": "mul", "__rmul__": "mul", "__sub__": "sub", "__rsub__": "rsub",
    "__truediv__": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv", "__pow__": "pow", "__neg__": "neg",
    "negative": "neg", "__matmul__": "matmul", "__rmatmul__": "rmatmul", "absolute": "abs", "__iadd__": "add_",
    "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_", "arctan": "atan",
}  # fmt: skip


def register_rule(operation: str | Callable[..., Any], rule: Rule) -> None:
    """Say how flow passes an operation: `rule(function, *args, **kwargs)` returns what stands in for it.

    Inside the rule, torch functions act on flows as everywhere else in a flow pass. The operation is named as in the
    error message, or given as the function. The built-in rules `identity`, `homogeneous` and `product` in
    `synflow.rules` serve most cases; a rule added here goes before the built-in one.

    >>> import torch, synflow
    >>> synflow.register_rule(torch.special.entr, synflow.rules.identity)
    """
    name = operation if isinstance(operation, str) else operation.__name__
    if not callable(rule):
        raise SynflowError(f"the rule for {name!r} must be callable as rule(function, *args, **kwargs), got {rule!r}")
    _USER_RULES[ALIASES.get(name, name)] = composite(rule)


def composite(rule: Rule) -> Rule:
    """A rule written in torch operations on flows, which are themselves looked up in the table."""

    def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with active_mode():
            return rule(function, *args, **kwargs)

    run.composite = True  # type: ignore[attr-defined]
    return run


def active_mode() -> LinearizationMode:
    """The mode of the flow pass under way."""
    if _ACTIVE.mode is None:
        raise SynflowError("no flow pass is under way: rules can only be called from within one")
    return _ACTIVE.mode


def arithmetic() -> Arithmetic:
    """How the pass under way computes."""
    return active_mode().arithmetic


def note_bend() -> None:
    """Say that a maximum or a divisor is at work: a shift before it can lower what else passes."""
    pass_ = arithmetic()
    pass_.bent = pass_.bent or pass_.had_shifts


def as_input(data: Tensor, degrees: Degrees | None = None) -> Flow:
    """A tensor that starts a flow; where the pass follows inputs back, it is collected."""
    inputs = arithmetic().inputs if _ACTIVE.mode is not None else None
    return as_flow(data, 0, degrees) if inputs is None else collected(data, inputs)


def collected(data: Tensor, inputs: list[Tensor]) -> Flow:
    """An input whose gradient will tell whether it reaches an output."""
    leaf = as_flow(data.requires_grad_())
    inputs.append(leaf)
    return leaf


class LinearizationMode(SafeMode):
    """Within it, operations on flows are replaced by their stand-ins."""

    def __init__(self, arithmetic: Arithmetic, modules: Mapping[nn.Module, str], gradients: bool = True) -> None:
        super().__init__()
        self.gradients = gradients
        self.arithmetic = arithmetic
        self.modules = modules
        self._outer: list[LinearizationMode | None] = []

    def __enter__(self) -> LinearizationMode:
        self._outer.append(_ACTIVE.mode)
        _ACTIVE.mode = self
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        _ACTIVE.mode = self._outer.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.entered:
            # An interrupt inside torch's bookkeeping can bring a mode back after it was left; then it does nothing.
            return func(*args, **kwargs)
        if self.arithmetic.watched is not None:
            self._note_uses(func, args, kwargs)
        name = getattr(func, "__name__", "")
        found = flows((args, kwargs))
        if name in SOURCES and not found:
            return SOURCES[name](func, *args, **kwargs)
        if self.arithmetic.folding and any(flow.spread is not None for flow in found):
            return self._folded(name, func, args, kwargs)
        if name == "__get__":
            return _attribute(func, args, kwargs)
        if name in ABOUT or not found:
            return func(*args, **kwargs)
        return self._by_rule(ALIASES.get(name, name), func, args, kwargs)

    def _folded(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation on flows that are held once per kind of position; those that cannot be so are unfolded."""
        if name in ABOUT or name == "__get__":
            answer = func(*mapped(_outline, args), **mapped(_outline, kwargs))
            if not isinstance(answer, Tensor) or name in ABOUT:
                return answer
            return _attribute(func, folding.all_unfolded(args), kwargs)
        name = ALIASES.get(name, name)
        # What is written in place has another shape now; the flow of the whole network tells whether that mattered.
        base = name[:-1] if name in ("add_", "mul_") else name
        rule = RULES.get(base.removesuffix("_"))
        if getattr(rule, "keeps_positions", False) and base.removesuffix("_") not in _USER_RULES:
            return self._by_rule(name, func, args, kwargs)
        how = None if base in _USER_RULES else folding.folded(base, args, kwargs, self.arithmetic.constants)
        if how is None:
            return self._by_rule(name, func, *folding.all_unfolded((args, kwargs)))
        result = self._by_rule(base, getattr(torch, base, func) if base != name else func, how[0], how[1])
        if isinstance(result, Flow):
            result.spread = how[2]
        return result

    def _by_rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = _USER_RULES.get(name) or RULES.get(name)
        # Flow passes a frozen part of a model too: what `no_grad` there hides from training is still a path.
        before = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(self.gradients)
            if rule is not None:
                if name in _USER_RULES:
                    note_bend()
                if self.arithmetic.captured and name not in CAPTURING and not hasattr(rule, "composite"):
                    args, kwargs = self.widened(args, kwargs)
                return self._apply(rule, name, func, args, kwargs)
            if name.endswith("_") and not name.endswith("__"):
                return self._in_place(name, args, kwargs)
        finally:
            torch._C._set_grad_enabled(before)
        raise NoRuleError(self._no_rule(name, func))

    def widened(self, args: Any, kwargs: Any) -> Any:
        """Half-precision weights, which only layers read as they are, in the precision of the flow."""
        captured = self.arithmetic.captured or {}

        def wide(leaf: Any) -> Any:
            if not isinstance(leaf, Flow) or leaf.dtype not in HALF or id(leaf) not in captured:
                return leaf
            data = widened(leaf, captured[id(leaf)], torch.float32)
            return as_flow(data, leaf.exponent, leaf.degrees)

        return mapped(wide, (args, kwargs))

    def _note_uses(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        name = getattr(func, "__name__", "")
        if name in ABOUT or name in WEIGHTED or (name == "__get__" and not isinstance(func(*args), Tensor)):
            return
        watched = self.arithmetic.watched or {}
        self.arithmetic.untapped.update(watched[id(f)] for f in flows((args, kwargs)) if id(f) in watched)

    def _apply(self, rule: Rule, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return rule(func, *args, **kwargs)
        except FloatingPointError as error:
            raise SynflowError(f"{error} at the operation {name!r} in {self.where()}") from error

    def _in_place(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute out of place by the rule, then write into the first argument."""
        base = ALIASES.get(name[:-1], name[:-1])
        rule = _USER_RULES.get(base) or RULES.get(base)
        function = getattr(Tensor, base, None) or getattr(torch.nn.functional, base, None)
        if rule is None or function is None:
            raise NoRuleError(self._no_rule(name, getattr(Tensor, name, None)))
        return self.overwrite(args[0], self._apply(rule, base, function, args, kwargs))

    def overwrite(self, target: Tensor, value: Any) -> Tensor:
        """Put a flow into an existing tensor; a plain tensor becomes a flow, unless it is a window on another one."""
        if value is target or not isinstance(value, Flow):
            return target
        if not isinstance(target, Flow):
            if target._is_view():
                self.refuse_view()
            target = as_flow(target, value.exponent)
        assert isinstance(target, Flow)
        shift = value.exponent - target.exponent
        if abs(shift) > 40:
            if target._is_view():
                # A window shares its exponent with the whole, where this would not fit. `x += y` takes what returns.
                return value
            target.exponent, shift = value.exponent, 0
        target.copy_(scaled(value, shift).to(target.dtype))
        target.degrees = value.degrees
        return target

    def refuse_view(self) -> NoReturn:
        """Say that a flow cannot be written into a window on a constant."""
        raise SynflowError(
            f"in {self.where()} a flow is written into a view of a constant tensor, where its exponent would be lost; "
            "write into the tensor itself (out[...] = value), or build it with torch.cat"
        )

    def where(self) -> str:
        """The innermost module that is running, by name and class."""
        frame = inspect.currentframe()
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and owner in self.modules:
                return f"module {self.modules[owner] or '(the model itself)'!r} ({type(owner).__name__})"
            frame = frame.f_back
        return "the model"

    def _no_rule(self, name: str, func: Any) -> str:
        return (
            f"no rule for the operation {name!r} on a flow, in {self.where()}. If flow passes it like an activation, "
            f"register one with\n    synflow.register_rule({name!r}, synflow.rules.identity)\n"
            "or pass a function rule(function, *args, **kwargs) that returns its positive stand-in "
            f"(the operation is {func!r})"
        )


def _outline(leaf: Any) -> Any:
    return folding.outline(leaf) if isinstance(leaf, Flow) and leaf.spread is not None else leaf


def _attribute(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A property such as `.shape` as it is; one that is a tensor (`.T`) is a flow again, and so is `.data`."""
    owner = args[0]
    if isinstance(owner, Flow) and getattr(func, "__self__", None) is Tensor.data:
        return owner
    value = func(*args, **kwargs)
    if isinstance(owner, Flow) and isinstance(value, Tensor) and not isinstance(value, Flow):
        return as_flow(value, owner.exponent, owner.degrees)
    return value


# Operations that start a flow: looking up an embedding is an input, like a floating-point input tensor.
SOURCES: dict[str, Rule] = {}
