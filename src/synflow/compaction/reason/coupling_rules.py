"""Which dimensions shrink together: the rules that give each tensor on a tape the units of its axes.

A rule says what the axes of an operation's results are and which units become one. Where an operation depends on the
size of a dimension, or mixes along it, its units are frozen with the reason. Operations without a rule freeze what they
touch, so the worst that an unknown operation does is to keep things as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from ..record import aten_names as aten
from ..record.tape import Step, Tape
from . import coupling_moves as moves
from .coupling import Coupling, UnfollowedError, beside, convolution, held, levelled, matrix_product
from .liveness import batch_norm_parts, reduced, scattered
from .planes import contraction

__all__ = ["couple"]


def couple(tape: Tape, flexible: frozenset[str] = frozenset()) -> Coupling:
    """Find the units of a tape; `flexible` modules cut tensors at places that follow when sizes change."""
    coupling = Coupling(tape, weights=set(tape.leaves), flexible=flexible)
    for step in tape.steps:
        if step.inputs and coupling.weights.issuperset(step.inputs):
            coupling.weights.update(step.outputs)
        reason = _not_followed(coupling, step)
        if reason is not None:  # keep what it touches rather than refuse the model
            coupling.freeze_all(step.inputs, reason)
            for number in step.outputs:
                coupling.axes[number] = [None] * len(tape.shapes[number])
        else:
            reason = next((coupling.unfollowed[n] for n in step.inputs if n in coupling.unfollowed), None)
        if reason is not None:
            behind = [n for n in step.outputs if all(ids is None for ids in coupling.of(n))]
            coupling.unfollowed.update(dict.fromkeys(behind, reason))
    for path in dict.fromkeys(decision.path for decision in tape.decisions):
        where = f"the code of {path}" if path else "the model's own code"
        coupling.freeze_all(sorted(tape.seen[path]), f"{where} decides on values, and may do something else with it")
    coupling.freeze_all(sorted(tape.outputs), "it is an output of the model")
    coupling.settle()
    return coupling


def _not_followed(coupling: Coupling, step: Step) -> str | None:
    """Follow the units through a step, or say why that cannot be done."""
    missing = f"there is no rule for the operation {step.name}"
    rule = _RULES.get(step.name) or (_elementwise if aten.elementwise(step.name, step.op) else None)
    if rule is None:
        return missing
    try:
        rule(coupling, step)
    except UnfollowedError as form:
        return f"{missing} with {form}"
    # Whatever a rule stumbles over, the model is not refused for it.
    except Exception as cause:
        return f"{missing} that can deal with this ({type(cause).__name__}: {cause})"
    return None


def _product(c: Coupling, step: Step) -> None:
    product = contraction(step, c.tape)
    assert product is not None
    if product.groups:
        convolution(c, product)
    else:
        matrix_product(c, product, attention=step.module in c.flexible)


def _elementwise(c: Coupling, step: Step) -> None:
    for out in step.outputs:
        c.axes[out] = beside(c, step.inputs, c.tape.shapes[step.outputs[0]])


def _factory(c: Coupling, step: Step) -> None:
    """A new tensor takes its size from somewhere, so its dimensions may shrink with those they meet."""
    shape = c.tape.shapes[step.outputs[0]]
    c.axes[step.outputs[0]] = [c.vector(size, dim, len(shape)) for dim, size in enumerate(shape)]


def _mixed(c: Coupling, step: Step) -> None:
    """Elements are mixed along some dimensions, which keep their size: even a zero counts in a mean."""
    name, number = step.name, step.inputs[0]
    rank, shape = len(c.tape.shapes[number]), c.tape.shapes[step.outputs[0]]
    if name in aten.POOLS:
        dims, reason = list(range(2, rank)), "it is pooled over"
    elif name in aten.MIXING_NORMS:
        layer = name == "native_layer_norm"
        dims = list(range(rank - len(step.args["normalized_shape"]), rank)) if layer else [1]
        reason = f"a {'layer' if layer else 'group'} norm takes its statistics over it"
    else:
        dims, reason = reduced(step, rank), f"the {name.strip('_')} runs over it"
    c.freeze(number, dims, reason)
    c.freeze_all(step.inputs[1:], reason)
    same = c.tape.shapes[number] == shape
    left = [ids if same or dim not in dims else None for dim, ids in enumerate(levelled(c, c.of(number), dims))]
    if len(shape) < rank:
        left = [None if ids is None else ids.squeeze(tuple(dims)) for dim, ids in enumerate(left) if dim not in dims]
    for out in step.outputs:
        if c.tape.shapes[out] == shape:
            c.axes[out] = left


def _scattered(c: Coupling, step: Step) -> None:
    """Elements taken from, or added up at, places along one dimension that a table of numbers says."""
    for number in scattered(step):
        c.axes[number] = held(c, number, [step.args["dim"]], f"it is looked up by number ({step.name})")
    c.axes[step.outputs[0]] = beside(c, scattered(step), c.tape.shapes[step.outputs[0]])


def _batch_norm(c: Coupling, step: Step) -> None:
    source = c.of(step.inputs[0])
    # Other dimensions have units where weights are standardised, seen as an image.
    c.freeze(step.inputs[0], [d for d in range(len(source)) if d != 1], "a batch norm takes its statistics over it")
    channel = source[1]
    for part in batch_norm_parts(step):
        ids = c.adopt(part, 0, channel)
        other = None if ids is None else ids.reshape(1, -1, *[1] * (len(source) - 2))
        channel = c.one(channel, other, "it is normalised together with a tensor of fixed size")
    c.axes[step.outputs[0]] = source


_RULES: dict[str, Callable[[Coupling, Step], None]] = {
    **dict.fromkeys(aten.OPERANDS, _product),
    **dict.fromkeys(aten.VIEWS, moves.reshape),
    **dict.fromkeys(aten.PERMUTATIONS, moves.permute),
    **dict.fromkeys(aten.PARTS, moves.parts),
    **dict.fromkeys(aten.LOOKUPS, moves.look_up),
    **dict.fromkeys(aten.BATCH_NORMS, _batch_norm),
    **dict.fromkeys(aten.MIXING, _mixed),
    **dict.fromkeys(aten.FACTORIES, _factory),
    **dict.fromkeys(aten.SCATTERED, _scattered),
    "expand": moves.expand,
    "cat": moves.cat,
    "stack": moves.stack,
    "constant_pad_nd": moves.pad,
}
