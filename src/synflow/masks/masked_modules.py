"""A module whose pruned weights read as zero, whatever is written to them.

The Parameter stays where it is: same object, name and order. The module gets a subclass in which the weight is a
property, `where(mask, parameter, 0)`. So the mask holds wherever the weight is read, for any optimizer and framework,
its gradient is zero, and all that goes by parameter name (optimizer groups, checkpoints, sharding, `functional_call`)
works as in the dense network. `torch.nn.utils.parametrize` would rename and reorder the parameters, refuse to pickle,
and break the copies of a model when one of them is baked.
"""

from __future__ import annotations

import copyreg
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..errors import SynflowError

__all__ = ["MASK_SUFFIX", "hold", "mask_of", "masked_names", "release", "zero_pruned"]

MASK_SUFFIX = "_synflow_mask"  # the buffer of `weight` is `weight_synflow_mask`: an error that names it names us


def masked_names(module: nn.Module) -> tuple[str, ...]:
    """The module's own parameters that are masked."""
    names: tuple[str, ...] = getattr(type(module), "_synflow_names", ())
    return names


def mask_of(module: nn.Module, name: str) -> Tensor:
    mask = module._buffers[name + MASK_SUFFIX]
    assert mask is not None
    return mask


def hold(module: nn.Module, name: str, mask: Tensor) -> None:
    """Mask one parameter of a module from now on; a mask that is there already is replaced."""
    parameter = module._parameters[name]
    assert parameter is not None
    if name in masked_names(module):
        mask_of(module, name).copy_(mask)  # in place: compiled graphs and DDP know this tensor
    else:
        own = mask.to(parameter.device, copy=True)
        if parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
            own = own.contiguous(memory_format=torch.channels_last)  # so that `where` runs over both in step
        module.register_buffer(name + MASK_SUFFIX, own)
        names = tuple(sorted({*masked_names(module), name}))
        _set_class(module, _masked_class(_plain_class(type(module)), names))
    zero_pruned(module)


def release(module: nn.Module) -> None:
    """Make a masked module plain again, zeros in place."""
    zero_pruned(module)
    names = masked_names(module)
    module.__class__ = _plain_class(type(module))
    for name in names:
        del module._buffers[name + MASK_SUFFIX]
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


@torch.no_grad()
def zero_pruned(module: nn.Module) -> None:
    """Set the pruned entries of the parameters themselves to zero, where an optimizer may have moved them unseen."""
    for name in masked_names(module):
        parameter = module._parameters.get(name)
        if parameter is not None and not parameter.is_meta:
            weight, mask = _local_parts(parameter, mask_of(module, name))
            weight.masked_fill_(~mask, 0)


_CLASSES: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}


def _masked_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The subclass of `base` in which the named weights are masked; nothing in it belongs to one module."""
    if (base, names) not in _CLASSES:
        _CLASSES[base, names] = _make_masked_class(base, names)
    return _CLASSES[base, names]


def _make_masked_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    body: dict[str, Any] = {name: _masked_property(name) for name in names}
    body |= {"_synflow_names": names, "_synflow_base": base, "__module__": base.__module__, "__doc__": base.__doc__}
    body["__qualname__"] = base.__qualname__

    def extra_repr(self: nn.Module) -> str:
        return ", ".join(filter(None, [base.extra_repr(self), _density_text(self)]))

    def __repr__(self: nn.Module) -> str:  # noqa: N807 -- becomes a method
        return base.__repr__(self).removesuffix(")") + f", {_density_text(self)})"

    def apply(self: nn.Module, fn: Callable[[nn.Module], None]) -> nn.Module:
        with _plain(self):  # so that an `init_weights` function reaches the parameter
            return base.apply(self, fn)

    def reset_parameters(self: Any, *args: Any, **kwargs: Any) -> None:
        with _plain(self):
            self.reset_parameters(*args, **kwargs)

    def _save_to_state_dict(self: nn.Module, *args: Any) -> None:
        zero_pruned(self)
        base._save_to_state_dict(self, *args)

    def _load_from_state_dict(
        self: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, strict: bool,
        missing: list[str], unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        ours = [prefix + name + MASK_SUFFIX for name in names]
        for key in ours:
            if key in state and getattr(state[key], "dtype", None) != torch.bool:
                errors.append(f"{key} is not a boolean mask.")
        base._load_from_state_dict(self, state, prefix, metadata, strict, missing, unexpected, errors)
        # The state of a dense network brings no masks: those that are attached stay.
        missing[:] = [key for key in missing if key not in ours]
        zero_pruned(self)

    def __delattr__(self: nn.Module, name: str) -> None:  # noqa: N807 -- becomes a method
        if name in names:
            raise SynflowError(
                f"{base.__name__}.{name} is masked and cannot be taken away (a parametrization does that); "
                "apply parametrizations first and attach the masks afterwards, or bake the model"
            )
        base.__delattr__(self, name)

    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:  # noqa: N807 -- becomes a method
        reduced: Any = base.__reduce_ex__(self, protocol)
        make, args, *rest = reduced
        if make is copyreg.__newobj__ and args == (type(self),):  # type: ignore[attr-defined]
            return (_new_masked, (base, names), *rest)
        return (make, args, *rest)

    methods = [extra_repr, apply, _save_to_state_dict, _load_from_state_dict, __delattr__, __reduce_ex__]
    if base.__repr__ is not nn.Module.__repr__:
        methods[0] = __repr__
    if hasattr(base, "reset_parameters"):
        methods.append(reset_parameters)
    body |= {method.__name__: method for method in methods}
    if issubclass(base, nn.RNNBase):
        body |= {name: vars(_RNN)[name] for name in ("_flat_weights", "_weights_have_changed")}
    return types.new_class(base.__name__, (base,), exec_body=lambda namespace: namespace.update(body))


def _masked_property(name: str) -> property:
    key = name + MASK_SUFFIX

    def seen(self: nn.Module) -> Tensor | None:
        parameter = self._parameters.get(name)
        if parameter is None:
            parameter = self.__dict__.get(name)  # a data-parallel replica keeps its weight there
            if parameter is None:
                return None
        mask = self._buffers[key]
        assert mask is not None
        if torch.compiler.is_compiling():
            return torch.where(mask, parameter, 0)
        if _is_sharded(parameter) and not _is_sharded(mask):
            # `fully_shard` asks for its parameter by name and needs that very object; within forward it is whole.
            zero_pruned(self)
            return parameter
        try:
            weight = torch.where(mask, parameter, 0)
        except AttributeError as cause:  # would make `nn.Module.__getattr__` hand out the weight without its mask
            raise RuntimeError(f"the mask of {name} could not be applied: {cause}") from cause
        weight.__dict__.update(_LOST_WRITES)
        return weight

    def keep(self: nn.Module, value: Tensor) -> None:
        self.__dict__[name] = value

    return property(seen, keep)


def _refuse_write(*_: Any, **__: Any) -> NoReturn:
    raise SynflowError(
        "this writes into a masked weight, which is computed anew at each reading, so the write would be lost; write "
        "to the parameter itself, dict(module.named_parameters())['weight'], or use reset_parameters() or model.apply()"
    )


# What initialisation, by `nn.init` or by hand, calls on `layer.weight`; as attributes they hide the tensor's methods.
_LOST_WRITES = dict.fromkeys(
    ("normal_", "uniform_", "fill_", "zero_", "copy_", "mul_", "div_", "add_", "sub_", "clamp_"), _refuse_write
)


class _RNN:
    """An RNN hands its kernel a list of raw weights; here the list is made of the masked ones, at each call."""

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, weights: list[Tensor | None]) -> None:
        pass

    def _weights_have_changed(self) -> bool:
        return False


def _new_masked(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """Where unpickling and copying start from."""
    masked = _masked_class(base, names)
    return masked.__new__(masked)


def _plain_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The class without our subclass in it; what others derived from that (`fully_shard`, say) is derived again."""
    if "_synflow_base" in vars(cls):
        base: type[nn.Module] = vars(cls)["_synflow_base"]
        return base
    if not hasattr(cls, "_synflow_base"):
        return cls
    bases = tuple(_plain_class(base) for base in cls.__bases__)
    body = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")}
    return types.new_class(cls.__name__, bases, exec_body=lambda namespace: namespace.update(body))


@contextmanager
def _plain(module: nn.Module) -> Iterator[None]:
    """Show the parameters themselves for a while; what was written to pruned weights is zeroed at the end."""
    masked = type(module)
    plain = _plain_class(masked)
    module.__class__ = plain
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()
    try:
        yield
    finally:
        if type(module) is plain:
            _set_class(module, masked)
            zero_pruned(module)


def _set_class(module: nn.Module, cls: type[nn.Module]) -> None:
    module.__class__ = cls
    module.__dict__.pop("_flat_weights", None)  # an RNN's list of raw weights is a property where they are masked


def _density_text(module: nn.Module) -> str:
    kept = {name: round(mask_of(module, name).float().mean().item(), 6) for name in masked_names(module)}
    return f"density={next(iter(kept.values())) if len(kept) == 1 else kept}"


def _is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor, told by its mesh so that torch.distributed need not be imported."""
    return hasattr(tensor, "device_mesh")


def _local_parts(parameter: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's part of a parameter and of its mask, of which every rank holds the whole."""
    if not _is_sharded(parameter):
        return parameter, mask
    from torch.distributed.tensor import DTensor, Replicate

    sharded: Any = parameter
    mesh = sharded.device_mesh
    whole: Any = mask
    if not _is_sharded(mask):
        whole = DTensor.from_local(mask, mesh, [Replicate()] * mesh.ndim, run_check=False)
    weight: Tensor = sharded.to_local()
    part: Tensor = whole.redistribute(mesh, sharded.placements).to_local()  # cuts, sends nothing
    return weight, part.to(weight.device)
