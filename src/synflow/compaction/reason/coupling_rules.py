"""Which dimensions shrink together: the rules that give each tensor on a tape the units of its axes.

A rule says what the axes of an operation's results are and which units become one. Where an operation depends on the
size of a dimension, or mixes along it, its units are frozen with the reason. Operations without a rule freeze all units
that they touch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...errors import is_strict
from ..record import aten_names as aten
from ..record.tape import Step, Tape
from .coupling import Coupling, UnfollowedError, beside, convolution, held, levelled, matrix_product
from .liveness import batch_norm_parts, reduced, scattered
from .planes import compressed, looked_up, move
from .units import Axes, factor, gather, shrunk, spread


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
    except Exception as cause:
        if is_strict():
            raise
        # A model is not refused because a rule fails.
        return f"{missing} that can deal with this ({type(cause).__name__}: {cause})"
    return None


def _elementwise(c: Coupling, step: Step) -> None:
    for out in step.outputs:
        c.axes[out] = beside(c, step.inputs, c.tape.shapes[step.outputs[0]])


def _factory(c: Coupling, step: Step) -> None:
    """A new tensor takes its size from somewhere, so its dimensions may shrink with those they meet."""
    c.axes[step.outputs[0]] = c.new(step.outputs[0])


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


def _reshape(c: Coupling, step: Step) -> None:
    """One dimension seen as several, or several as one."""
    before, after = c.tape.shapes[step.inputs[0]], c.tape.shapes[step.outputs[0]]
    result: Axes = [None] * len(after)
    if any(ids is not None for ids in c.of(step.inputs[0])):
        plan = factor(before, after)
        if plan is None:
            c.freeze(step.inputs[0], range(len(before)), "it is reshaped across dimensions")
        else:
            sizes, made_before, made_after = plan
            split = _split(c, step, sizes, made_before)
            result = [_merged(c, split, sizes, places, made_after) for places in made_after]
    c.axes[step.outputs[0]] = result


def _split(c: Coupling, step: Step, sizes: Sequence[int], made: Sequence[Sequence[int]]) -> Axes:
    """The units of each factor of the dimensions of a tensor."""
    split: Axes = [None] * len(sizes)
    for ids, places in zip(c.of(step.inputs[0]), made, strict=True):
        rest = list(places)
        whole = None if ids is None else compressed(ids.expand(c.tape.shapes[step.inputs[0]]).reshape(list(sizes)))
        while whole is not None and rest:
            if len(rest) == 1:
                split[rest[0]] = shrunk(whole, rest[0])
                break
            row, whole = c.units.split(whole, rest[0], rest[1:])
            split[rest[0]] = row
            rest = rest[1:]
            if row is not None and whole is not None and step.module not in c.flexible:
                c.units.columns.append(whole)
    return split


def _merged(
    c: Coupling, split: Axes, sizes: Sequence[int], places: Sequence[int], made: Sequence[Sequence[int]]
) -> Tensor | None:
    """The units of one dimension that is made of several factors."""
    joined: Tensor | None = None
    for turn, place in enumerate(reversed(places)):
        ids = split[place]
        if ids is None:
            continue
        later = places[len(places) - turn :]
        ids = c.units.level(ids, later)  # lines that depend on what follows them can't be laid out in order
        if joined is not None:
            line, column = spread(ids, [place, *later], sizes), spread(joined, later, sizes)
            ids = c.units.merge(*torch.broadcast_tensors(line, column))
        joined = ids
    return None if joined is None else gather(spread(joined, places, sizes), sizes, made)


def _viewed(c: Coupling, step: Step, order: Sequence[int | None]) -> None:
    """Apply the step to units; `order` gives, for each dimension of the results, the one that it comes from."""
    moved = [None if ids is None else move(step, c.tape, [ids]) for ids in c.of(step.inputs[0])]
    for place, number in enumerate(step.outputs):
        axes: Axes = []
        for dim, origin in enumerate(order):
            pieces = None if origin is None else moved[origin]
            ids = None if pieces is None else pieces[place]
            if ids is not None and (ids.shape[dim] <= 1 or not ids.numel()):
                c.units.freeze(ids, "a part of size one can't shrink")
                ids = None
            axes.append(ids)
        c.axes[number] = axes


def _permute(c: Coupling, step: Step) -> None:
    """Dimensions in another order."""
    sizes = range(2, len(c.tape.shapes[step.inputs[0]]) + 2)  # all different: the shape of the result tells the order
    _viewed(c, step, [size - 2 for size in step.redo([torch.empty(tuple(sizes), device="meta")])[0].shape])


def _expand(c: Coupling, step: Step) -> None:
    """Dimensions of size one repeated: their new size has no units."""
    rank, new = (len(c.tape.shapes[number]) for number in (step.inputs[0], step.outputs[0]))
    _viewed(c, step, [*[None] * (new - rank), *range(rank)])


def _parts(c: Coupling, step: Step) -> None:
    """A part of a dimension: one cut at fixed places can't shrink, one cut into equal parts can, evenly."""
    shape = c.tape.shapes[step.inputs[0]]
    dim, drop = step.args["dim"] % len(shape), step.name in ("select", "unbind")
    places = torch.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))])
    sizes = [piece.numel() for piece in step.redo([places])]
    ids = c.of(step.inputs[0])[dim]
    if ids is not None and sizes[0] != shape[dim] and step.module not in c.flexible:
        listed = "with_sizes" in step.name  # unlike a number of parts, a list of sizes does not adapt by itself
        if listed and all((number, dim) in c.tape.sizes for number in step.outputs):
            pass  # but these are attributes, which can be changed
        elif drop or listed or step.name == "slice" or len(set(sizes)) > 1:
            c.units.freeze(ids, "it is cut at a fixed place")
        else:
            c.units.cells.append(ids)
            c.units.counts.append((ids.movedim(dim, -1).reshape(-1, sizes[0]), None))
    _viewed(c, step, [d for d in range(len(shape)) if d != dim or not drop])


def _cat(c: Coupling, step: Step) -> None:
    """Dimensions put end to end."""
    shapes, fixed = c.tape.shapes, "it lies beside a tensor of fixed size"
    numbers = [n for n in step.inputs if shapes[n] != (0,)]
    rank = len(shapes[numbers[0]])
    dim = step.args["dim"] % rank
    result = levelled(c, beside(c, numbers, shapes[numbers[0]], skip=dim), [dim])
    pieces = [ids if (ids := c.of(n)[dim]) is not None else c.fixed(shapes[n][dim], dim, rank, fixed) for n in numbers]
    result[dim] = move(step, c.tape, pieces)[0]
    c.axes[step.outputs[0]] = result


def _stack(c: Coupling, step: Step) -> None:
    """Tensors side by side along a new dimension."""
    dim = step.args["dim"] % len(c.tape.shapes[step.outputs[0]])
    inner = beside(c, step.inputs, c.tape.shapes[step.inputs[0]])
    outer: Axes = [None if ids is None else ids.unsqueeze(dim) for ids in inner]
    c.axes[step.outputs[0]] = [*outer[:dim], None, *outer[dim:]]


def _pad(c: Coupling, step: Step) -> None:
    """Padding has a fixed size of its own; what is padded may shrink."""
    pads, rank = step.args["pad"], len(c.tape.shapes[step.inputs[0]])
    ends = {rank - 1 - place: pads[2 * place : 2 * place + 2] for place in range(len(pads) // 2)}
    result = levelled(c, c.of(step.inputs[0]), [dim for dim, sizes in ends.items() if any(sizes)])
    for dim, sizes in ends.items():
        ids = result[dim]
        if min(sizes) < 0:
            c.units.freeze(ids, "it is cropped")
            result[dim] = None
        elif ids is not None:
            padding = int(c.fixed(1, 0, 1, "it is padding"))
            result[dim] = torch.constant_pad_nd(ids, [*[0, 0] * (rank - 1 - dim), *sizes], padding)
    c.axes[step.outputs[0]] = result


def _look_up(c: Coupling, step: Step) -> None:
    """Lines picked by numbers: embeddings, relative position biases."""
    where = looked_up(step, c.tape)
    if where is None:
        raise UnfollowedError("several tables or a mask")
    dim, new = where
    left = held(c, step.inputs[0], [dim], "it is looked up by number")
    lines: Axes = [None if ids is None else ids.squeeze(dim)[(slice(None),) * dim + (None,) * new] for ids in left]
    c.axes[step.outputs[0]] = [*lines[:dim], *[None] * new, *lines[dim + 1 :]]


_RULES: dict[str, Callable[[Coupling, Step], None]] = {
    **dict.fromkeys(aten.OPERANDS, matrix_product),
    "convolution": convolution,
    **dict.fromkeys(aten.VIEWS, _reshape),
    **dict.fromkeys(aten.PERMUTATIONS, _permute),
    **dict.fromkeys(aten.PARTS, _parts),
    **dict.fromkeys(aten.LOOKUPS, _look_up),
    **dict.fromkeys(aten.BATCH_NORMS, _batch_norm),
    **dict.fromkeys(aten.MIXING, _mixed),
    **dict.fromkeys(aten.FACTORIES, _factory),
    **dict.fromkeys(aten.SCATTERED, _scattered),
    "expand": _expand,
    "cat": _cat,
    "stack": _stack,
    "constant_pad_nd": _pad,
}
