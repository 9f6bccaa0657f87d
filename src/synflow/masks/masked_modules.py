"""Modules whose pruned weights read as zero, whatever values the parameter has.

The Parameter stays the same object under the same name. The module gets a subclass in which the weight is a property,
`where(mask, parameter, 0)`. So the mask holds wherever the weight is read, for any optimizer and framework; the
gradient of pruned weights is zero, and code that uses parameter names (optimizer groups, checkpoints, sharding,
`functional_call`) works as in the dense network. `torch.nn.utils.parametrize` would rename and reorder the parameters,
refuse to pickle, and break the copies of a model when one of them is baked.

After each optimizer step the pruned entries of the parameter are zeroed. The property hides them anyway, but momentum
from before `attach` changes them, and code that reads the parameter directly (a penalty over `model.parameters()`, a
list that also holds the weight) would see that.
"""

from __future__ import annotations

import copyreg
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..errors import SynflowError
from .masked_weight import MaskedWeight

MASK_SUFFIX = "_synflow_mask"  # `weight` has the buffer `weight_synflow_mask`: torch's errors then name this library


def masked_names(module: nn.Module) -> tuple[str, ...]:
    """The module's own parameters that are masked."""
    names: tuple[str, ...] = getattr(type(module), "_synflow_names", ())
    return names


def mask_of(module: nn.Module, name: str) -> Tensor:
    mask = module._buffers[name + MASK_SUFFIX]
    assert mask is not None
    return mask


def hold(module: nn.Module, name: str, mask: Tensor) -> None:
    """Mask one parameter of a module; an existing mask is replaced."""
    parameter = module._parameters[name]
    assert parameter is not None
    if name in masked_names(module):
        mask_of(module, name).copy_(mask)  # in place: compiled graphs and DDP refer to this tensor
    else:
        own = mask.to(parameter.device, copy=True)
        if parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
            own = own.contiguous(memory_format=torch.channels_last)  # the layout of the weight: `where` is faster
        module.register_buffer(name + MASK_SUFFIX, own)
        names = tuple(sorted({*masked_names(module), name}))
        _set_class(module, _masked_class(_plain_class(type(module)), names))
        _zero_after_each_step(module)
    zero_pruned(module)


def release(module: nn.Module) -> None:
    """Make a masked module plain again, zeros in place."""
    zero_pruned(module)
    names = masked_names(module)
    _set_class(module, _plain_class(type(module)))
    for name in names:
        del module._buffers[name + MASK_SUFFIX]


@torch.no_grad()
def zero_pruned(module: nn.Module) -> None:
    """Set the pruned entries of the parameters to zero, since an optimizer may have changed them."""
    for name in masked_names(module):
        parameter = module._parameters.get(name)
        if parameter is not None and not parameter.is_meta:
            weight, mask = _local_parts(parameter, mask_of(module, name))
            weight.masked_fill_(~mask, 0)


def _is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor: only DTensors have a mesh, and this test does not import torch.distributed."""
    return hasattr(tensor, "device_mesh")


def _local_parts(parameter: Any, mask: Any) -> tuple[Tensor, Tensor]:
    """This rank's part of a parameter and of its mask; every rank holds the whole mask."""
    if not _is_sharded(parameter):
        return parameter, mask
    from torch.distributed.tensor import DTensor, Replicate

    mesh, weight = parameter.device_mesh, parameter.to_local()
    if not _is_sharded(mask):
        mask = DTensor.from_local(mask, mesh, [Replicate()] * mesh.ndim, run_check=False)
    part = mask.redistribute(mesh, parameter.placements).to_local()  # takes a slice, without communication
    return weight, part.to(weight.device)


_MASKED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # all living masked modules
_HOOK: list[Any] = []  # the one hook on all optimizers, installed with the first masked module
_LOCK = threading.Lock()  # for both


def _zero_after_each_step(module: nn.Module) -> None:
    with _LOCK:
        _MASKED.add(module)
        if not _HOOK:
            _HOOK.append(register_optimizer_step_post_hook(_after_step))


def _after_step(optimizer: Any, *_: Any) -> None:
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    with _LOCK:
        masked = list(_MASKED)
    for module in masked:
        if any(id(parameter) in stepped for parameter in module._parameters.values()):
            zero_pruned(module)


_CLASSES: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}


def _masked_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The subclass of `base` in which the named weights are masked; modules share it."""
    if (base, names) in _CLASSES:
        return _CLASSES[base, names]
    body: dict[str, Any] = {name: _masked_property(name) for name in names}
    body |= {"_synflow_names": names, "_synflow_base": base, "__module__": base.__module__, "__doc__": base.__doc__}
    body["__qualname__"] = base.__qualname__
    if hasattr(base, "reset_parameters"):
        body["reset_parameters"] = _reset_parameters
    mixins: tuple[type, ...] = (_MaskedRNN, _Masked) if issubclass(base, nn.RNNBase) else (_Masked,)
    masked = types.new_class(base.__name__, (*mixins, base), exec_body=lambda namespace: namespace.update(body))
    return _CLASSES.setdefault((base, names), masked)


class _Masked:
    """The methods that differ between a masked module and its plain class; precedes that class in the MRO."""

    def extra_repr(self: Any) -> str:
        return ", ".join(filter(None, [super().extra_repr(), _density_text(self)]))  # type: ignore[misc]

    def __repr__(self: Any) -> str:
        text = super().__repr__()
        default = type(self)._synflow_base.__repr__ is nn.Module.__repr__  # which calls `extra_repr`
        return text if default else text.removesuffix(")") + f", {_density_text(self)})"

    def apply(self: Any, fn: Callable[[nn.Module], None]) -> nn.Module:
        with unmasked_module(self):  # so that an `init_weights` function reaches the parameter
            applied: nn.Module = self.apply(fn)
        return applied

    def _save_to_state_dict(self: Any, *args: Any) -> None:
        zero_pruned(self)
        super()._save_to_state_dict(*args)  # type: ignore[misc]

    def _load_from_state_dict(self: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        _metadata, _strict, missing, _unexpected, errors = rest
        ours = [prefix + name + MASK_SUFFIX for name in masked_names(self)]
        for key in ours:
            if key in state and getattr(state[key], "dtype", None) != torch.bool:
                errors.append(f"{key} is not a boolean mask.")
        super()._load_from_state_dict(state, prefix, *rest)  # type: ignore[misc]
        # The state of a dense network has no masks: the attached ones stay.
        missing[:] = [key for key in missing if key not in ours]
        zero_pruned(self)

    @property
    def qconfig(self) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} has no attribute 'qconfig'")

    @qconfig.setter
    def qconfig(self, _: object) -> NoReturn:
        raise SynflowError(
            "torch.ao.quantization chooses layers by their exact class and would skip this masked "
            f"{type(self).__name__}; bake the masks into the weights first: synflow.bake(model)"
        )

    def __delattr__(self: Any, name: str) -> None:
        if name in masked_names(self):
            raise SynflowError(
                f"{type(self).__name__}.{name} is masked and cannot be taken away (a parametrization does that); "
                "apply parametrizations first and attach the masks afterwards, or bake the model"
            )
        super().__delattr__(name)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        make, args, *rest = reduced
        if make is copyreg.__newobj__ and args == (type(self),):  # type: ignore[attr-defined]
            return (_new_masked, (type(self)._synflow_base, masked_names(self)), *rest)
        return (make, args, *rest)


class _MaskedRNN:
    """An RNN passes its kernel a list of parameters; in a masked RNN the list holds the masked weights."""

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, weights: list[Tensor | None]) -> None:
        pass

    def _weights_have_changed(self) -> bool:
        return False


def _reset_parameters(self: Any, *args: Any, **kwargs: Any) -> None:
    with unmasked_module(self):
        self.reset_parameters(*args, **kwargs)


def _masked_property(name: str) -> property:
    def seen(self: nn.Module) -> Tensor | None:
        parameter = self._parameters.get(name)
        if parameter is None:
            parameter = self.__dict__.get(name)  # a data-parallel replica stores its weight here
        if parameter is None:
            return None
        mask = mask_of(self, name)
        if torch.compiler.is_compiling():
            return torch.where(mask, parameter, 0)
        if _is_sharded(parameter) and not _is_sharded(mask):
            # `fully_shard` reads the attribute and needs the Parameter itself; in forward it is not sharded.
            zero_pruned(self)
            return parameter
        try:
            weight = torch.where(mask, parameter, 0)
            return weight.as_subclass(MaskedWeight) if type(weight) is Tensor and not _read_by_torch() else weight
        except AttributeError as cause:  # Python would then call `nn.Module.__getattr__`, which ignores the mask
            raise RuntimeError(f"the mask of {name} could not be applied: {cause}") from cause

    def keep(self: nn.Module, value: Tensor) -> None:
        self.__dict__[name] = value

    return property(seen, keep)


def _read_by_torch() -> bool:
    """Whether torch's own layers read the weight: they never write, and plain tensors allow torch's fast paths."""
    caller: str = sys._getframe(2).f_globals.get("__name__", "")
    return caller.startswith("torch.nn.modules.") or caller == __name__


def _new_masked(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """An empty masked module, to be filled by unpickling or copying."""
    masked = _masked_class(base, names)
    module = masked.__new__(masked)
    _zero_after_each_step(module)
    return module


def _plain_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The class without our subclass; a class derived from ours (`fully_shard` does this) is derived from it again."""
    if "_synflow_base" in vars(cls):
        base: type[nn.Module] = vars(cls)["_synflow_base"]
        return base
    if not hasattr(cls, "_synflow_base"):
        return cls
    bases = tuple(_plain_class(base) for base in cls.__bases__)
    body = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")}
    return types.new_class(cls.__name__, bases, exec_body=lambda namespace: namespace.update(body))


@contextmanager
def unmasked_module(module: nn.Module) -> Iterator[None]:
    """Show the parameters instead of masked values inside the block; at its end zero the pruned entries."""
    masked, names = type(module), masked_names(module)
    plain = _plain_class(masked)
    _set_class(module, plain)
    try:
        yield
    finally:
        if all(name + MASK_SUFFIX in module._buffers for name in names):  # else `bake` ran inside the block
            if type(module) is not plain:
                raise SynflowError(
                    f"{type(module).__name__} got another class while its masks were off (a parametrization does "
                    "that), so they cannot be put on again; parametrize first, attach afterwards"
                )
            _set_class(module, masked)
            zero_pruned(module)


def _set_class(module: nn.Module, cls: type[nn.Module]) -> None:
    module.__class__ = cls
    module.__dict__.pop("_flat_weights", None)  # in a masked RNN this list is a property
    if isinstance(module, nn.RNNBase) and not masked_names(module):
        module._init_flat_weights()


def _density_text(module: nn.Module) -> str:
    kept = {name: round(mask_of(module, name).float().mean().item(), 6) for name in masked_names(module)}
    return f"density={next(iter(kept.values())) if len(kept) == 1 else kept}"
