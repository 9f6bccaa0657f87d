"""The table of positive stand-ins: how flow passes each operation, whoever calls it.

A mode sees every torch operation of a forward pass. An operation that touches no flow runs as it is (positions, masks,
constants); the others are looked up by name in `RULES`. `synflow.flow.passes` says what a pass is asked and finds.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from ..support.nested import mapped
from ..support.private_torch import behind_transforms, set_gradients
from ..support.torch_modes import SafeMode
from .operation_names import ABOUT, ALIASES, LAYERS, RESHAPES_IN_PLACE, SHIFTS_LAST, WEIGHTED, advice
from .passes import FlowPass, PassOptions
from .tensor import Choice, Flow, flows, read_attribute
from .written import Written

Function: TypeAlias = Callable[..., Any]
Rule: TypeAlias = Callable[..., Any]


class NoRuleError(SynflowError):
    """The model uses an operation for which no stand-in is known."""


class _Active(threading.local):
    mode: LinearizationMode | None = None


_ACTIVE = _Active()

RULES: dict[str, Rule] = {}
# The rule for any operation that has a choice among its arguments.
CHOICE = "a choice"
_USER_RULES: dict[str, Rule] = {}
# Operations that start a flow: looking up an embedding is an input, like a floating-point input tensor.
SOURCES: dict[str, Rule] = {}


def register_rule(operation: str | Callable[..., Any], rule: Rule) -> None:
    """Say how flow passes an operation: `rule(function, *args, **kwargs)` returns what stands in for it.

    Inside the rule, torch functions act on flows as everywhere else in a flow pass. The operation is named as in the
    error message, or given as the function. The built-in rules `identity`, `homogeneous` and `product` in
    `synflow.rules` serve most cases; a rule added here goes before the built-in one.

    >>> import torch, synflow
    >>> synflow.register_rule(torch.special.entr, synflow.rules.identity)
    """
    name = operation if isinstance(operation, str) else getattr(operation, "__name__", None)
    if name is None:
        raise SynflowError(f"an operation is given by its name or as the function, got {operation!r}")
    if not callable(rule):
        raise SynflowError(f"the rule for {name!r} must be callable as rule(function, *args, **kwargs), got {rule!r}")
    _USER_RULES[ALIASES.get(name, name)] = composite(rule)


def has_user_rule(name: str) -> bool:
    """Whether a user's rule goes before the built-in one."""
    return name in _USER_RULES


def composite(rule: Rule) -> Rule:
    """A rule written in torch operations on flows, which are themselves looked up in the table."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with active_mode():
            return rule(*args, **kwargs)

    run.composite = True  # type: ignore[attr-defined]
    return run


def stand_in(rule: Rule) -> Rule:
    """A composite rule that is the same for all its functions: it gets the arguments alone."""
    return composite(lambda _, *args, **kwargs: rule(*args, **kwargs))


def active_mode() -> LinearizationMode:
    """The mode of the flow pass under way."""
    if _ACTIVE.mode is None:
        raise SynflowError("no flow pass is under way: rules can only be called from within one")
    return _ACTIVE.mode


def flow_pass() -> FlowPass:
    """The pass under way."""
    return active_mode().flow_pass


def options() -> PassOptions:
    """How the pass under way computes."""
    return flow_pass().options


class LinearizationMode(SafeMode):
    """Within it, operations on flows are replaced by their stand-ins."""

    def __init__(self, flow_pass: FlowPass, modules: Mapping[nn.Module, str], gradients: bool = True) -> None:
        super().__init__()
        self.gradients = gradients
        self.flow_pass = flow_pass
        self.modules = modules
        self._outer: list[LinearizationMode | None] = []
        # Not self.where: in a cycle of references the pass would live until the next collection.
        self.written = Written(flow_pass, partial(innermost_module, modules))

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
        device = next((kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)), None)
        if device is not None:  # the model's own: a flow keeps its precision
            with torch.autocast(device, enabled=False):
                return self.__torch_function__(func, types, args, kwargs)
        if self.written.anything:
            with torch.enable_grad() if self.gradients else torch.no_grad():
                args, kwargs = mapped(self.written.current, (args, kwargs))
        name = getattr(func, "__name__", "")
        if self.flow_pass.watched is not None:
            self._note_uses(name, func, args, kwargs)
        if not flows((args, kwargs)):
            if any(isinstance(behind_transforms(leaf), Flow) for leaf in args):
                raise NoRuleError(
                    f"the operation {name!r} in {self.where()} gets a flow inside of torch.vmap or another transform, "
                    "where no rule is looked up; write it with a batch dimension or as a loop over the batch"
                )
            return SOURCES[name](func, *args, **kwargs) if name in SOURCES else func(*args, **kwargs)
        # The model runs without gradients, and rules with: what `no_grad` hides from training is still a path.
        before = torch.is_grad_enabled()
        try:
            set_gradients(self.gradients)
            return self._on_flows(name, func, args, kwargs)
        finally:
            set_gradients(before)

    def _on_flows(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The stand-in for an operation; shifts are followed as far as the first operation that may multiply them."""
        found = self.flow_pass
        before, known = found.had_shifts, ALIASES.get(name, name)
        if before and not found.shifts_met and name not in ABOUT and name != "__get__":
            found.shifts_met = known in _USER_RULES or not hasattr(RULES.get(known), "adds_only")
        result = self._replaced(name, func, args, kwargs)
        if found.had_shifts and not before and known not in SHIFTS_LAST:
            found.shifts_met = True
        return result

    def _replaced(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.flow_pass.hooks.operation(name, func, args, kwargs, self.by_rule)
        if result is not NotImplemented:
            return result
        if name == "__get__":
            return read_attribute(func, args, kwargs)
        if name == "__set__":
            return self.written.set_attribute(func, *args)
        if name in ABOUT:
            return func(*args, **kwargs)
        return self.by_rule(ALIASES.get(name, name), func, args, kwargs)

    def by_rule(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation by its row in the table."""
        rule = _USER_RULES.get(name)
        if rule is None and name not in RULES and name.endswith("_") and not name.endswith("__"):
            return self._in_place(name, func, args, kwargs)
        if rule is None and any(type(leaf) is Choice for leaf in flows((args, kwargs))):
            return RULES[CHOICE](name, func, args, kwargs)
        rule = rule or RULES.get(name)
        if rule is None:
            raise self.no_rule(name, func)
        if name in _USER_RULES:
            self.flow_pass.note_bend()
        if name not in LAYERS and not hasattr(rule, "composite"):
            args, kwargs = self.readable(args, kwargs)
        try:
            return rule(func, *args, **kwargs)
        except FloatingPointError as error:
            raise SynflowError(f"{error} at the operation {name!r} in {self.where()}") from error

    def readable(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments in a form that every rule can read, whatever the hooks of the pass hold them in."""
        return self.flow_pass.hooks.arguments(args, kwargs)

    def _note_uses(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Remember which watched weights are used other than by a layer."""
        if name in ABOUT or name in WEIGHTED or (name == "__get__" and not isinstance(func(*args), Tensor)):
            return
        watched = self.flow_pass.watched or {}
        self.flow_pass.untapped.update(watched[id(f)] for f in flows((args, kwargs)) if id(f) in watched)

    def _in_place(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute out of place by the rule, then write into the first argument; or change its shape in place."""
        if name in RESHAPES_IN_PLACE:
            return func(*args, **kwargs)
        base = ALIASES.get(name[:-1], name[:-1])
        function = getattr(Tensor, base, None) or getattr(torch.nn.functional, base, None)
        if function is None or not (base in _USER_RULES or base in RULES):
            raise self.no_rule(name, func)
        return self.written.overwrite(args[0], self.by_rule(base, function, args, kwargs))

    def where(self) -> str:
        """The innermost module that is running, by name and class."""
        return innermost_module(self.modules)

    def no_rule(self, name: str, func: Any) -> NoRuleError:
        """The error for an operation without a rule, with the way out."""
        return NoRuleError(f"no rule for the operation {name!r} on a flow, in {self.where()}. {advice(name, func)}")


def innermost_module(modules: Mapping[nn.Module, str]) -> str:
    """The innermost of the modules that is running, by name and class."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and owner in modules:
            return f"module {modules[owner] or '(the model itself)'!r} ({type(owner).__name__})"
        frame = frame.f_back
    return "the model"


class _Context:
    """The `ctx` of the forward of a custom function: it may put anything there, and nothing reads it."""

    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Nothing is kept."""

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_backward


@contextmanager
def forward_only() -> Iterator[None]:
    """In this thread custom autograd functions that get a flow run as their forward: its backward does not count."""
    usual: Any = torch.autograd.Function.__dict__["apply"]
    thread = threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
        if ours or threading.get_ident() != thread or not flows((args, kwargs)):
            return usual.__func__(cls, *args, **kwargs)
        separate = cls.setup_context is not torch.autograd.Function.setup_context
        return cls.forward(*args, **kwargs) if separate else cls.forward(_Context(), *args, **kwargs)

    setattr(torch.autograd.Function, "apply", classmethod(apply))  # noqa: B010 -- what mypy takes for a mistake
    try:
        yield
    finally:
        setattr(torch.autograd.Function, "apply", usual)  # noqa: B010
