"""Which dimensions shrink together: the rules that give each tensor on a tape the units of its axes.

A rule says what the axes of an operation's results are and which units become one. Where an operation depends on the
size of a dimension, or mixes along it, its units are frozen with the reason. Operations without a rule freeze what they
touch, so the worst that an unknown operation does is to keep things as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from ..record.aten_names import (
    ALONG,
    BATCH_NORMS,
    ELEMENTWISE,
    FACTORIES,
    KEEPING,
    LIKE,
    PARTS,
    PERMUTATIONS,
    POOLS,
    REDUCTIONS,
    SCATTERED,
    VIEWS,
)
from ..record.tape import Step, Tape
from . import coupling_moves as moves
from .coupling import Coupling, UnfollowedError, beside, convolution, levelled, matrix_product
from .liveness import batch_norm_parts, reduced
from .planes import CONTRACTIONS, contraction
from .units import Axes

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
    for path in {path for _, path in tape.decisions}:
        where = f"the code of {path}" if path else "the model's own code"
        coupling.freeze_all(sorted(tape.seen[path]), f"{where} decides on values, and may do something else with it")
    coupling.freeze_all(sorted(tape.outputs), "it is an output of the model")
    return coupling


def _not_followed(coupling: Coupling, step: Step) -> str | None:
    """Follow the units through a step, or say why that cannot be done."""
    missing, rule = f"there is no rule for the operation {step.name}", _RULES.get(step.name)
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


def _like(c: Coupling, step: Step) -> None:
    c.axes[step.outputs[0]] = list(c.of(step.inputs[0]))


def _along(c: Coupling, step: Step) -> None:
    c.freeze(step.inputs[0], [step.args["dim"]], f"the {step.name.strip('_')} runs along it")
    _like(c, step)


def _pool(c: Coupling, step: Step) -> None:
    source = c.of(step.inputs[0])
    spatial = range(2, len(source))
    c.freeze(step.inputs[0], spatial, "it is pooled over")
    for out in step.outputs:
        c.axes[out] = [*levelled(c, source, spatial)[:2], *[None] * len(spatial)]


def _scattered(c: Coupling, step: Step) -> None:
    """Elements taken from, or added up at, places along one dimension that a table of numbers says."""
    moved = [n for n in (step.ref("self"), step.ref("source"), step.ref("src")) if n is not None]
    shape, dim = c.tape.shapes[moved[0]], step.args["dim"]
    for number in moved:
        c.freeze(number, [dim], f"it is looked up by number ({step.name})")
        c.axes[number] = levelled(c, c.of(number), [dim % len(shape)])
    result = beside(c, moved, c.tape.shapes[step.outputs[0]])
    result[dim] = None
    c.axes[step.outputs[0]] = result


def _embedding(c: Coupling, step: Step) -> None:
    table = step.ref("weight")
    assert table is not None
    rows, columns = c.of(table)
    c.units.freeze(rows, "rows are looked up by number")
    rank = len(c.tape.shapes[step.outputs[0]])
    c.axes[step.outputs[0]] = [
        *[None] * (rank - 1), None if columns is None else columns.reshape([1] * (rank - 1) + [-1])
    ]  # fmt: skip


def _batch_norm(c: Coupling, step: Step) -> None:
    source = c.of(step.inputs[0])
    for dim, ids in enumerate(source):
        if dim != 1:  # weights that are standardised, seen as an image
            c.units.freeze(ids, "a batch norm takes its statistics over it")
    channel = source[1]
    for part in batch_norm_parts(step):
        ids = c.vector_of(part, channel)
        other = None if ids is None else ids.reshape(1, -1, *[1] * (len(source) - 2))
        if channel is not None or other is not None:
            channel = c.one(channel, other, "it is normalised together with a tensor of fixed size")
    c.axes[step.outputs[0]] = source


def _mixing_norm(c: Coupling, step: Step) -> None:
    """Statistics over channels change when channels go, even such as are zero."""
    source, shape = c.of(step.inputs[0]), c.tape.shapes[step.inputs[0]]
    rank = len(shape)
    if step.name == "native_layer_norm":
        dims = list(range(rank - len(step.args["normalized_shape"]), rank))
        kind = "layer norm"
    else:
        dims, kind = [1], "group norm"
    for dim in dims:
        c.units.freeze(source[dim], f"a {kind} takes its statistics over it")
    for name in ("weight", "bias"):
        number = step.ref(name)
        if number is not None:
            c.freeze(number, range(len(c.tape.shapes[number])), f"a {kind} takes its statistics over it")
    c.axes[step.outputs[0]] = source


def _reduction(c: Coupling, step: Step) -> None:
    source = c.of(step.inputs[0])
    dims = reduced(step, len(source))
    for dim in dims:
        if source[dim] is not None:
            if step.name == "sum":
                c.totals.append((step.inputs[0], dim))
            else:
                c.units.freeze(source[dim], f"the {step.name} runs over it")
    left = levelled(c, source, dims)
    if step.args.get("keepdim"):
        result: Axes = [None if dim in dims else ids for dim, ids in enumerate(left)]
    else:
        kept = [d for d in range(len(source)) if d not in dims]
        result = []
        for d in kept:
            ids = left[d]
            result.append(None if ids is None else ids.permute(*kept, *dims).reshape([ids.shape[k] for k in kept]))
    for out in step.outputs:
        c.axes[out] = result


_RULES: dict[str, Callable[[Coupling, Step], None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(CONTRACTIONS, _product),
    **dict.fromkeys(VIEWS, moves.reshape),
    **dict.fromkeys(PERMUTATIONS, moves.permute),
    **dict.fromkeys(PARTS, moves.parts),
    **dict.fromkeys(KEEPING, moves.shift),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(ALONG, _along),
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(FACTORIES, _factory),
    **dict.fromkeys(LIKE, _like),
    **dict.fromkeys(SCATTERED, _scattered),
    "expand": moves.expand,
    "cat": moves.cat,
    "stack": moves.stack,
    "constant_pad_nd": moves.pad,
    "index": moves.index,
    "embedding": _embedding,
    "native_layer_norm": _mixing_norm,
    "native_group_norm": _mixing_norm,
}
