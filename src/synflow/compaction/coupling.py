"""Which dimensions shrink together: the rules that give each tensor on a tape the units of its axes.

A rule says what the axes of an operation's results are and which units become one. Where an operation depends on the
size of a dimension, or mixes along it, its units are frozen with the reason. Operations without a rule freeze what they
touch, so the worst that an unknown operation does is to keep things as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .contractions import Contraction, contraction
from .liveness import ALONG, BATCH_NORMS, ELEMENTWISE, FACTORIES, LIKE, POOLS, REDUCTIONS, batch_norm_parts, reduced
from .movement import KEEPING, PARTS, PERMUTATIONS, VIEWS, factor, gather, lift, permutation, stretches, touched
from .tape import Step, Tape
from .units import Axes, Units, spread

__all__ = ["Coupling", "couple"]


@dataclass
class Coupling:
    """The units of every tensor on a tape, and the sums over them.

    `sums`: (unit ids of the summed index as (batch, k), contraction) for each sum of products;
    `totals`: (tensor, dimension) for each plain sum; `weights`: tensors made of parameters alone.
    """

    tape: Tape
    units: Units = field(default_factory=Units)
    axes: dict[int, Axes] = field(default_factory=dict)
    sums: list[tuple[Tensor, Contraction]] = field(default_factory=list)
    totals: list[tuple[int, int]] = field(default_factory=list)
    weights: set[int] = field(default_factory=set)
    flexible: frozenset[str] = frozenset()

    def of(self, number: int) -> Axes:
        """The axes of a tensor; new units for a parameter or buffer, fixed sizes for an unknown tensor."""
        if number not in self.axes:
            shape = self.tape.shapes[number]
            if number in self.tape.leaves and number not in self.tape.written:
                self.axes[number] = [self.vector(size, dim, len(shape)) for dim, size in enumerate(shape)]
            else:
                self.axes[number] = [None] * len(shape)
        return self.axes[number]

    def vector(self, size: int, dim: int, rank: int) -> Tensor | None:
        """New units along one dimension; a dimension of size one can't shrink."""
        return None if size <= 1 else self.units.fresh([size if d == dim else 1 for d in range(rank)])

    def freeze(self, number: int, dims: Sequence[int], reason: str) -> None:
        axes = self.of(number)
        for dim in dims:
            self.units.freeze(axes[dim], reason)

    def freeze_all(self, numbers: Sequence[int], reason: str) -> None:
        for number in numbers:
            if number in self.axes or number in self.tape.leaves:
                self.freeze(number, range(len(self.tape.shapes[number])), reason)

    def one(self, first: Tensor | None, second: Tensor | None, reason: str) -> Tensor | None:
        """Two dimensions of the same size that stand side by side: their units become one."""
        if first is None or second is None:
            self.units.freeze(first if second is None else second, reason)
            return None
        self.units.unify(first, second)
        return first if first.numel() <= second.numel() else second


def couple(tape: Tape, flexible: frozenset[str] = frozenset()) -> Coupling:
    """Find the units of a tape; `flexible` modules cut tensors at places that follow when sizes change."""
    coupling = Coupling(tape, weights=set(tape.leaves), flexible=flexible)
    for step in tape.steps:
        if step.inputs and coupling.weights.issuperset(step.inputs):
            coupling.weights.update(step.outputs)
        _rule(coupling, step)
    for number in tape.outputs:
        coupling.freeze_all([number], "it is an output of the model")
    return coupling


def _rule(c: Coupling, step: Step) -> None:
    name, axes, shapes = step.name, c.axes, c.tape.shapes
    where = step.module or "the model"
    product = contraction(step, c.tape)
    if product is not None:
        (_convolution if product.groups else _matrix_product)(c, product, where)
    elif name in VIEWS:
        axes[step.outputs[0]] = _reshape(c, step, where)
    elif name in PERMUTATIONS:
        order = permutation(step, len(shapes[step.inputs[0]]))
        source = c.of(step.inputs[0])
        axes[step.outputs[0]] = [_permuted(source[d], order) for d in order]
    elif name == "expand":
        new = len(shapes[step.outputs[0]]) - len(shapes[step.inputs[0]])
        source = c.of(step.inputs[0])
        axes[step.outputs[0]] = [*[None] * new, *(_padded(ids, new) for ids in source)]
    elif name in PARTS:
        _parts(c, step, where)
    elif name == "cat":
        axes[step.outputs[0]] = _cat(c, step, where)
    elif name == "stack":
        dim = step.args["dim"] % len(shapes[step.outputs[0]])
        inner: Axes = _beside(c, step.inputs, shapes[step.inputs[0]], where)
        lifted: Axes = [None if ids is None else ids.unsqueeze(dim) for ids in inner]
        axes[step.outputs[0]] = [*lifted[:dim], None, *lifted[dim:]]
    elif name in (*KEEPING, "constant_pad_nd"):
        rank = len(shapes[step.inputs[0]])
        moved = touched(step, rank)
        source = c.of(step.inputs[0])
        if name == "constant_pad_nd":
            axes[step.outputs[0]] = _pad(c, step, source)
        else:
            c.freeze(step.inputs[0], moved, f"{where} moves it about by position ({name})")
            axes[step.outputs[0]] = _levelled(c, source, moved)
    elif name in BATCH_NORMS:
        source = c.of(step.inputs[0])
        rank = len(source)
        channel = source[1]
        for part in batch_norm_parts(step):
            ids = c.of(part)[0]
            beside = None if ids is None else ids.reshape(1, -1, *[1] * (rank - 2))
            if channel is not None or beside is not None:
                channel = c.one(channel, beside, f"{where} normalises a tensor of fixed size")
        axes[step.outputs[0]] = source
    elif name in ("native_layer_norm", "native_group_norm"):
        _mixing_norm(c, step, where)
    elif name in REDUCTIONS:
        _reduction(c, step, where)
    elif name in ALONG:
        c.freeze(step.inputs[0], [step.args["dim"]], f"{where} takes the {name.strip('_')} along it")
        axes[step.outputs[0]] = list(c.of(step.inputs[0]))
    elif name in POOLS:
        source = c.of(step.inputs[0])
        c.freeze(step.inputs[0], range(2, len(source)), f"{where} pools over it")
        axes[step.outputs[0]] = [*_levelled(c, source, range(2, len(source)))[:2], *[None] * (len(source) - 2)]
    elif name == "embedding":
        table = step.ref("weight")
        assert table is not None
        rows, columns = c.of(table)
        c.units.freeze(rows, f"{where} looks rows up by number")
        rank = len(shapes[step.outputs[0]])
        lookup = None if columns is None else columns.reshape([1] * (rank - 1) + [-1])
        axes[step.outputs[0]] = [*[None] * (rank - 1), lookup]
    elif name in FACTORIES:
        shape = shapes[step.outputs[0]]
        axes[step.outputs[0]] = [c.vector(size, dim, len(shape)) for dim, size in enumerate(shape)]
    elif name in LIKE:
        axes[step.outputs[0]] = list(c.of(step.inputs[0]))
    elif name in ELEMENTWISE:
        axes[step.outputs[0]] = _beside(c, step.inputs, shapes[step.outputs[0]], where)
    elif name == "index":
        _index(c, step, where)
    else:
        c.freeze_all(step.inputs, f"there is no rule for {name} in {where}")


def _padded(ids: Tensor | None, new: int) -> Tensor | None:
    return None if ids is None else ids.reshape([1] * new + list(ids.shape))


def _permuted(ids: Tensor | None, order: list[int]) -> Tensor | None:
    return None if ids is None else ids.permute(order)


def _levelled(c: Coupling, axes: Axes, dims: Sequence[int]) -> Axes:
    """No axis is ragged along these dimensions any more, except the dimensions' own."""
    return [None if ids is None else c.units.level(ids, [d for d in dims if d != own]) for own, ids in enumerate(axes)]


def _beside(c: Coupling, numbers: Sequence[int], shape: Sequence[int], where: str) -> Axes:
    """Tensors combined element by element, broadcasting."""
    rank = len(shape)
    result: Axes = [None] * rank
    seen = [False] * rank
    for number in numbers:
        source, own = c.of(number), c.tape.shapes[number]
        new = rank - len(own)
        for dim, ids in enumerate(source):
            place = dim + new
            if own[dim] == 1:
                continue
            ids = _padded(ids, new)
            if seen[place]:
                result[place] = c.one(result[place], ids, f"{where} combines it with a tensor of fixed size")
            else:
                result[place], seen[place] = ids, True
    return result


def _matrix_product(c: Coupling, p: Contraction, where: str) -> None:
    rank = len(p.shapes[0])
    x, y = c.of(p.x), c.of(p.y)
    k_x, k_y = x[-1], y[-2]
    if k_x is not None:
        k_x = c.units.level(k_x, [rank - 2]).transpose(-1, -2)
    if k_y is not None:
        k_y = c.units.level(k_y, [rank - 1])
    if p.shapes[0][-1] > 1:
        k = c.one(k_x, k_y, f"{where} multiplies it with a matrix of fixed size")
        if k is not None:
            if p.x not in c.weights and p.y not in c.weights:
                c.units.freeze(k, f"{where} scales products of activations by their size")
            wide = k.reshape(-1, k.shape[-2]) if rank == 3 else k.reshape(1, -1)
            c.sums.append((wide, p))
    out: Axes = [None] * rank
    if rank == 3 and p.shapes[0][0] > 1:
        out[0] = c.one(x[0], y[0], f"{where} multiplies it with a batch of fixed size")
    out[-2] = None if x[-2] is None else c.units.level(x[-2], [rank - 1])
    out[-1] = None if y[-1] is None else c.units.level(y[-1], [rank - 2])
    if p.bias is not None:
        bias_axes, bias_shape = c.of(p.bias), c.tape.shapes[p.bias]
        new = rank - len(bias_shape)
        for dim, ids in enumerate(bias_axes):
            if bias_shape[dim] > 1:
                out[dim + new] = c.one(out[dim + new], _padded(ids, new), f"{where} adds a bias of fixed size")
    c.axes[p.out] = out


def _convolution(c: Coupling, p: Contraction, where: str) -> None:
    groups, rank = p.groups, len(p.shapes[0])
    spatial = [1] * (rank - 2)
    fixed = f"{where} convolves a tensor of fixed size"
    x = _levelled(c, c.of(p.x), range(2, rank))
    c.freeze(p.x, range(2, rank), f"{where} convolves over it")
    channels = None if x[1] is None else x[1].reshape(-1)
    if groups == 1:
        if p.y not in c.axes and p.y in c.tape.leaves and p.y not in c.tape.written:
            c.axes[p.y] = [*(c.vector(p.shapes[1][dim], dim, rank) for dim in (0, 1)), *[None] * (rank - 2)]
        weight = c.of(p.y)
        c.freeze(p.y, range(2, rank), f"{where} convolves with it")
        inner, outer = (weight[0], weight[1]) if p.transposed else (weight[1], weight[0])
        if p.shapes[0][1] > 1:
            k = c.one(channels, None if inner is None else inner.reshape(-1), fixed)
            if k is not None:
                c.sums.append((k.reshape(1, -1), p))
        made = None if outer is None else outer.reshape(-1)
    else:
        made = _grouped(c, p, channels, where)
    if p.bias is not None and p.shapes[2][1] > 1:
        made = c.one(made, c.of(p.bias)[0], f"{where} adds a bias of fixed size")
    c.axes[p.out] = [x[0], None if made is None else made.reshape(1, -1, *spatial), *[None] * (rank - 2)]


def _grouped(c: Coupling, p: Contraction, channels: Tensor | None, where: str) -> Tensor | None:
    """Each group has inputs and outputs of its own; a whole group may go, or as many units in each."""
    groups, units = p.groups, c.units
    inside, outside = p.shapes[0][1] // groups, p.shapes[2][1] // groups
    if channels is None:
        channels = units.fresh([groups * inside])
        units.freeze(channels, f"{where} convolves a tensor of fixed size")
    group: Tensor | None
    inner: Tensor | None
    group, inner = channels.reshape(groups, inside), None
    if inside > 1:
        group, inner = units.split(group, 0, [1])
    if group is None:  # the same channel of every group goes at once
        group = units.fresh([groups, 1])
        units.freeze(group, f"{where} has its channels tied across its groups")
    if inner is not None:
        inner = inner.expand(groups, inside)
        c.sums.append((inner, p))
    known = p.y in c.axes
    if outside == 1:
        made = group.expand(groups, 1).reshape(-1)
    elif known and (stored := c.axes[p.y][1 if p.transposed else 0]) is not None and not p.transposed:
        made = stored.reshape(-1)
        row, _ = units.split(made.reshape(groups, outside), 0, [1])
        if row is not None:
            units.unify(row, group)
        else:
            units.freeze(made, f"{where} has its channels tied across its groups")
    else:
        column = units.fresh([groups, outside])
        made = units.merge(group.expand(groups, outside), column).reshape(-1)
        units.tie(column, [1], group)
    ones = [1] * (len(p.shapes[1]) - 2)
    if p.transposed:  # (inputs, outputs of a group, kernel)
        ragged = made.reshape(groups, 1, outside).expand(-1, inside, -1).reshape(-1, outside, *ones)
        weight: Axes = [channels.reshape(-1, 1, *ones), ragged if outside > 1 else None]
    else:
        lines = None if inner is None else inner.unsqueeze(1).expand(-1, outside, -1).reshape(-1, inside, *ones)
        weight = [made.reshape(-1, 1, *ones), lines]
    weight += [None] * len(ones)
    if not known:
        c.axes[p.y] = weight
    else:
        for old, new in zip(c.axes[p.y], weight, strict=True):
            if old is not None or new is not None:
                c.one(old, new, f"{where} uses a weight that is also used elsewhere")
    return made


def _reshape(c: Coupling, step: Step, where: str) -> Axes:
    before, after = c.tape.shapes[step.inputs[0]], c.tape.shapes[step.outputs[0]]
    axes = c.of(step.inputs[0])
    if all(ids is None for ids in axes):
        return [None] * len(after)
    plan = factor(before, after)
    if plan is None:
        c.freeze(step.inputs[0], range(len(before)), f"{where} reshapes it across dimensions")
        return [None] * len(after)
    sizes, made_before, made_after = plan
    parts: Axes = [None] * len(sizes)
    for dim, places in enumerate(made_before):
        ids = axes[dim]
        rest = list(places)
        whole = None if ids is None else lift(ids, sizes, made_before)
        while whole is not None and rest:
            if len(rest) == 1:
                parts[rest[0]] = whole
                break
            parts[rest[0]], whole = c.units.split(whole, rest[0], rest[1:])
            rest = rest[1:]
    result: Axes = []
    for places in made_after:
        joined: Tensor | None = None
        for turn, place in enumerate(reversed(places)):
            ids = parts[place]
            if ids is None:
                continue
            later = places[len(places) - turn :]
            ids = c.units.level(ids, later)  # lines that depend on what follows them can't be laid out in order
            if joined is None:
                joined = ids
            else:
                row, column = torch.broadcast_tensors(spread(ids, [place, *later], sizes), spread(joined, later, sizes))
                joined = c.units.merge(row, column)
        result.append(None if joined is None else gather(spread(joined, places, sizes), sizes, made_after))
    return result


def _parts(c: Coupling, step: Step, where: str) -> None:
    source, shape = c.of(step.inputs[0]), c.tape.shapes[step.inputs[0]]
    dim, parts = step.args["dim"] % len(shape), stretches(step, c.tape)
    drop = step.name in ("select", "unbind")
    ids = source[dim]
    if parts is None:
        c.freeze(step.inputs[0], [dim], f"{where} takes every n-th of it")
        source = _levelled(c, source, [dim])
        kept = [None if axis is None or own == dim else axis for own, axis in enumerate(source)]
        c.axes[step.outputs[0]] = kept
        return
    whole = len(parts) == 1 and parts[0] == (0, shape[dim])
    if ids is not None and not whole and step.module not in c.flexible:
        if drop or step.name == "slice" or len({length for _, length in parts}) > 1:
            c.units.freeze(ids, f"{where} cuts it at a fixed place")
        else:
            c.units.cells(ids, dim, len(parts))
    for number, (start, length) in zip(step.outputs, parts, strict=True):
        cut = [axis if axis is None or axis.shape[dim] == 1 else axis.narrow(dim, start, length) for axis in source]
        if drop:
            cut = [None if axis is None else axis.select(dim, 0) for own, axis in enumerate(cut) if own != dim]
        elif length == 1:
            cut[dim] = None
        c.axes[number] = cut


def _cat(c: Coupling, step: Step, where: str) -> Axes:
    shapes = c.tape.shapes
    numbers = [n for n in step.inputs if shapes[n] != (0,)]
    dim, rank = step.args["dim"] % len(shapes[numbers[0]]), len(shapes[numbers[0]])
    pieces: list[Tensor] = []
    for number in numbers:
        ids = c.of(number)[dim]
        if ids is None and shapes[number][dim]:
            ids = c.units.fresh([shapes[number][dim] if d == dim else 1 for d in range(rank)])
            c.units.freeze(ids, f"{where} puts a tensor of fixed size beside it")
        if ids is not None:
            pieces.append(ids)
    common = torch.broadcast_shapes(*[(*p.shape[:dim], 1, *p.shape[dim + 1 :]) for p in pieces])
    joined = torch.cat([p.expand([*common[:dim], p.shape[dim], *common[dim + 1 :]]) for p in pieces], dim)
    result = _beside(c, numbers[:1], shapes[numbers[0]], where)
    for number in numbers[1:]:
        for other in range(rank):
            if other != dim and shapes[number][other] > 1:
                reason = f"{where} puts a tensor of fixed size beside it"
                result[other] = c.one(result[other], c.of(number)[other], reason)
    result = _levelled(c, result, [dim])
    result[dim] = joined
    return result


def _pad(c: Coupling, step: Step, source: Axes) -> Axes:
    """Padding has a fixed size of its own; what is padded may shrink."""
    pads, rank = step.args["pad"], len(source)
    moved = touched(step, rank)
    result = _levelled(c, source, moved)
    for dim in moved:
        ids = result[dim]
        before, after = pads[2 * (rank - 1 - dim) : 2 * (rank - 1 - dim) + 2]
        if ids is None:
            continue
        if before < 0 or after < 0:
            c.units.freeze(ids, f"{step.module} crops it")
            result[dim] = None
            continue
        ends = [c.units.fresh([*ids.shape[:dim], n, *ids.shape[dim + 1 :]]) for n in (before, after)]
        for end in ends:
            c.units.freeze(end, "it is padding")
        result[dim] = torch.cat([ends[0], ids, ends[1]], dim)
    return result


def _mixing_norm(c: Coupling, step: Step, where: str) -> None:
    """Statistics over channels change when channels go, even such as are zero."""
    source, shape = c.of(step.inputs[0]), c.tape.shapes[step.inputs[0]]
    rank = len(shape)
    if step.name == "native_layer_norm":
        dims = list(range(rank - len(step.args["normalized_shape"]), rank))
        kind = "layer norm"
    else:
        dims, kind = [1], "group norm"
    for dim in dims:
        c.units.freeze(source[dim], f"{where} takes the statistics of a {kind} over it")
    for name in ("weight", "bias"):
        number = step.ref(name)
        if number is not None:
            c.freeze(number, range(len(c.tape.shapes[number])), f"{where} is a {kind}")
    c.axes[step.outputs[0]] = source


def _reduction(c: Coupling, step: Step, where: str) -> None:
    source = c.of(step.inputs[0])
    dims = reduced(step, len(source))
    for dim in dims:
        if source[dim] is not None:
            if step.name == "sum":
                c.totals.append((step.inputs[0], dim))
            else:
                c.units.freeze(source[dim], f"{where} takes the {step.name} over it")
    left = _levelled(c, source, dims)
    if step.args.get("keepdim"):
        result = [None if dim in dims else ids for dim, ids in enumerate(left)]
    else:
        kept = [d for d in range(len(source)) if d not in dims]
        result = []
        for d in kept:
            ids = left[d]
            result.append(None if ids is None else ids.permute(*kept, *dims).reshape([ids.shape[k] for k in kept]))
    for out in step.outputs:
        c.axes[out] = result


def _index(c: Coupling, step: Step, where: str) -> None:
    """Rows picked by one table of numbers, as relative position biases are."""
    source, indices = c.of(step.inputs[0]), step.args["indices"]
    given = [d for d, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        c.freeze_all(step.inputs, f"there is no rule for indexing of this kind in {where}")
        return
    dim = given[0]
    c.freeze(step.inputs[0], [dim], f"{where} looks it up by number")
    left = _levelled(c, source, [dim])
    new = len(c.tape.shapes[step.outputs[0]]) - len(source)
    result: Axes = []
    for own, ids in enumerate(left):
        if own == dim:
            result += [None] * (new + 1)
        else:
            result.append(None if ids is None
                          else ids.reshape([*ids.shape[:dim], *[1] * (new + 1), *ids.shape[dim + 1 :]]))  # fmt: skip
    c.axes[step.outputs[0]] = result
