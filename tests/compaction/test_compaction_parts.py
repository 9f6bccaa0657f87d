"""The parts of compaction on their own: the tape, planes that move, units, cutting."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from synflow.compaction.cut.plan import kept_in_all
from synflow.compaction.cut.surgery import cut, paste, shrink
from synflow.compaction.reason.liveness import _anywhere, alive_in_training, nonzero_only
from synflow.compaction.reason.planes import move, settled
from synflow.compaction.reason.units import Units, factor
from synflow.compaction.record.recorder import recording
from synflow.compaction.record.tape import Tape, mark_outputs, tensors_in


def record(model, *inputs, training=False):
    tape = Tape()
    with recording(model, tape, training):
        mark_outputs(tape, model(*inputs))
    return tape


def names(tape):
    return [step.name for step in tape.steps]


def test_a_tape_has_the_operations_their_modules_and_the_outputs():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Dropout(0.5))
    tape = record(model, torch.randn(2, 3))
    assert names(tape) == ["t", "addmm", "relu"]
    assert [step.module for step in tape.steps] == ["0", "0", "1"]
    assert tape.outputs == {tape.steps[-1].outputs[0]}
    assert sorted(tape.leaves.values()) == ["0.bias", "0.weight"]
    assert "bernoulli" in names(record(model, torch.randn(2, 3), training=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_steps_on_which_no_output_depends_are_left_out():
    class Wasteful(nn.Module):
        def forward(self, x):
            (x * 3).sum()
            return x + 1

    tape = record(Wasteful(), torch.randn(2))
    assert names(tape) == ["mul", "sum", "add"]
    assert names(tape.used()) == ["add"]


@pytest.mark.parametrize(("view", "seen"), [(lambda x: x[:, :2], True), (lambda x: x[:, 2:], False)])
def test_writing_through_a_view_is_noticed_where_it_overlaps(view, seen):
    class Writes(nn.Module):
        def forward(self, x):
            x = x + 1
            left = x[:, :2]
            view(x).relu_()
            return left * 2

    assert ("overwritten" in names(record(Writes(), torch.randn(3, 4)).used())) == seen


def test_outputs_are_found_in_any_container():
    class Box:
        def __init__(self, value):
            self.value, self.me = value, self

    a, b, c = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert [len(t) for t in tensors_in({"x": [a, (b, None, "text")], "y": Box(c)})] == [1, 2, 3]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_shapes_are_made_of_common_factors(shape, data):
    total = int(torch.Size(shape).numel())
    after, rest = [], total
    while rest > 1:
        size = data.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        after.append(size)
        rest //= size
    after = after or [1]
    plan = factor(shape, after)
    if plan is not None:
        sizes, first, second = plan
        for dims, made in ((shape, first), (after, second)):
            assert [int(torch.Size([sizes[p] for p in places]).numel()) for places in made] == list(dims)


MOVES = {
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[:, 1:3],
    "every other": lambda x: x[:, ::2],
    "select": lambda x: x[:, 1],
    "split": lambda x: x.split(2, 1),
    "unbind": lambda x: x.unbind(2),
    "cat": lambda x: torch.cat([x, x * 1], 1),
    "stack": lambda x: torch.stack([x, x * 1], 1),
    "expand": lambda x: x[:1].expand(5, -1, -1),
    "roll": lambda x: x.roll(1, 1),
    "flip": lambda x: x.flip(1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "pad": lambda x: nn.functional.pad(x, (1, 0, 2, 1)),
    "pad with ones": lambda x: nn.functional.pad(x, (1, 0, 2, 1), value=1.0),
    "crop": lambda x: nn.functional.pad(x, (0, -1, 0, 0)),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "reshape": lambda x: x.reshape(2, 6, 2),
    "flatten": lambda x: x.flatten(1),
}


@pytest.mark.parametrize("kind", MOVES)
@given(data=st.data())
def test_planes_move_as_elements_do_and_so_do_their_gradients(kind, data):
    class Moves(nn.Module):
        def forward(self, x):
            return MOVES[kind](x)

    shape = (3, 4, 2)
    tape = record(Moves(), torch.zeros(shape))
    small = [size if data.draw(st.booleans()) else 1 for size in shape]
    bits = data.draw(st.lists(st.booleans(), min_size=24, max_size=24))
    plane = torch.tensor(bits[: int(torch.Size(small).numel())]).reshape(small)
    planes = {tape.steps[0].inputs[0]: plane}
    for step in tape.steps:
        given_ = [planes[number] for number in step.inputs]
        made = given_ if step.name == "mul" else [settled(plane) for plane in move(step, tape, given_)]
        planes.update(zip(step.outputs, made, strict=True))
    full = plane.expand(shape).float().requires_grad_()
    outputs = tensors_in(MOVES[kind](full))
    last = [step for step in tape.steps if not tape.outputs.isdisjoint(step.outputs)][-1]
    # What is said of all positions at once may be said of padding too; to call a zero alive is only cautious.
    agrees = (
        torch.equal if kind not in ("pad", "pad with ones", "crop") else lambda said, true: bool((said | ~true).all())
    )
    for number, output in zip(last.outputs, outputs, strict=True):
        assert agrees(planes[number].expand(output.shape), output > 0)
    if len(tape.steps) == 1:
        felt = [torch.rand(output.shape) < 0.3 for output in outputs]
        expected = torch.autograd.grad(outputs, full, [f.float() for f in felt])[0] > 0
        whole = plane.expand(shape).float().requires_grad_()
        moved = [m.expand(f.shape) for m, f in zip(move(last, tape, [whole]), felt, strict=True)]
        assert torch.equal(torch.autograd.grad(moved, whole, [f.float() for f in felt])[0] > 0, expected)


def test_units_become_one_and_keep_the_first_reason():
    units = Units()
    a, b = units.fresh([3]), units.fresh([3])
    units.freeze(b[1:2], "because")
    units.unify(a, b)
    assert units.settle()[b].tolist() == a.tolist()
    assert units.reasons == {1: "because"}
    assert units.level(torch.stack([a, b]), [0]).shape == (1, 3)


def test_a_split_that_is_undone_gives_the_same_units():
    units = Units()
    whole = units.fresh([6])
    row, column = units.split(whole.reshape(2, 3), 0, [1])
    assert row.shape == (2, 1)
    assert column.shape == (2, 3)
    assert units.merge(row.expand(2, 3), column).flatten().tolist() == whole.tolist()
    repeated = whole.reshape(6, 1).expand(6, 4)
    assert units.split(repeated, 0, [1])[1] is None
    assert units.split(repeated.t(), 0, [1])[0] is None


@given(st.data())
def test_pasting_undoes_cutting(data):
    whole = torch.arange(24).reshape(4, 6)
    rows = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True).map(sorted))
    columns = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True).map(sorted))
    if len(rows) % 2 == 0 and data.draw(st.booleans()):
        kept = {0: rows, 1: [columns, columns[::-1]]}
    else:
        kept = {0: rows, 1: columns}
    part = cut(whole, kept)
    assert part.shape == (len(rows), len(columns))
    back = paste(part, torch.full_like(whole, -1), kept)
    assert torch.equal(cut(back, kept), part)
    assert int((back >= 0).sum()) == part.numel()
    assert torch.equal(back[back >= 0], whole[back >= 0])


def test_a_number_that_is_added_makes_zeros_alive():
    class Adds(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def forward(self, x):
            return x + self.number

    for number in (0, 1):
        tape = record(Adds(number), torch.zeros(2, 3))
        planes = nonzero_only(tape, {tape.steps[0].inputs[0]: torch.zeros(1, 3, dtype=torch.bool)})
        assert bool(planes[tape.steps[0].outputs[0]].any()) == bool(number)


def test_a_buffer_that_forward_writes_to_may_become_nonzero():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            y = x * self.seen
            self.seen.add_(x.mean(0))
            return y

    tape = record(Counts(), torch.ones(2, 3))
    alive = alive_in_training(tape, dict(Counts().named_buffers()), {})  # zeros, as before the run
    (number,) = tape.leaves
    assert number in tape.written
    assert alive[number].all()


def test_a_kernel_is_alive_if_any_of_its_positions_is():
    kernels = torch.zeros(2, 1, 3, 3, dtype=torch.bool)
    kernels[1, 0, 2, 1] = True
    assert _anywhere(kernels, kernel=True).tolist() == [[[[False]]], [[[True]]]]
    assert torch.equal(_anywhere(kernels, kernel=False), kernels)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({0: [0, 1, 3]}, {0: [1, 2], 1: [1, 4]}),
        ({1: [[0, 1, 2], [2, 3, 5]]}, {1: [0, 2]}),
        ({1: [0, 1, 4]}, {1: [[0, 1], [1, 2]]}),
        ({1: [[0, 1, 2], [3, 4, 5]]}, {0: [0, 1]}),
        ({0: [0, 2], 1: [[0, 1, 2], [2, 3, 5]]}, {1: [[0, 1], [1, 2]]}),
    ],
)
def test_two_cuts_are_one(first, second):
    whole = torch.arange(24).reshape(4, 6)
    assert torch.equal(cut(whole, kept_in_all((4, 6), first, second)), cut(cut(whole, first), second))


def rows(hidden, gates, gone=()):
    """Rows of the weights of a recurrent layer, for each of its gates."""
    return [gate * hidden + unit for gate in range(gates) for unit in range(hidden) if unit not in gone]


@pytest.mark.parametrize(
    ("whole", "kept", "part"),
    [
        (nn.Linear(4, 3), {"weight": {0: [0, 2], 1: [1]}, "bias": {0: [0, 2]}}, nn.Linear(1, 2)),
        (nn.Conv2d(4, 6, 3), {"weight": {0: [1, 2, 5], 1: [0, 3]}, "bias": {0: [1, 2, 5]}}, nn.Conv2d(2, 3, 3)),
        (
            nn.Conv2d(4, 8, 3, groups=2, bias=False),
            {"weight": {0: [0, 1, 4, 5], 1: [[0], [1]]}},
            nn.Conv2d(2, 4, 3, groups=2, bias=False),
        ),
        (
            nn.Conv2d(4, 8, 3, groups=4, bias=False),
            {"weight": {0: [2, 3, 6, 7]}},
            nn.Conv2d(2, 4, 3, groups=2, bias=False),
        ),
        (
            nn.ConvTranspose2d(6, 4, 3, groups=2),
            {"weight": {0: [0, 1, 3, 4], 1: [1]}, "bias": {0: [1, 3]}},
            nn.ConvTranspose2d(4, 2, 3, groups=2),
        ),
        (
            nn.ConvTranspose2d(6, 4, 3, groups=2, bias=False),
            {"weight": {0: [3, 4, 5]}},
            nn.ConvTranspose2d(3, 2, 3, bias=False),
        ),
        (
            nn.BatchNorm1d(5),
            {name: {0: [0, 4]} for name in ("weight", "bias", "running_mean", "running_var")},
            nn.BatchNorm1d(2),
        ),
        (nn.Embedding(7, 5), {"weight": {1: [0, 3]}}, nn.Embedding(7, 2)),
        (nn.PReLU(4), {"weight": {0: [1, 2, 3]}}, nn.PReLU(3)),
        (
            nn.GRU(3, 4, bias=False),
            {"weight_ih_l0": {0: rows(4, 3, [1])}, "weight_hh_l0": {0: rows(4, 3, [1]), 1: [0, 2, 3]}},
            nn.GRU(3, 3, bias=False),
        ),
        (
            nn.LSTM(3, 4, bias=False, proj_size=2),
            {
                "weight_ih_l0": {0: rows(4, 4, [1])},
                "weight_hh_l0": {0: rows(4, 4, [1]), 1: [1]},
                "weight_hr_l0": {0: [1], 1: [0, 2, 3]},
            },
            nn.LSTM(3, 3, bias=False, proj_size=1),
        ),
    ],
)
def test_modules_remember_the_sizes_of_what_is_left(whole, kept, part):
    model = nn.Sequential(copy.deepcopy(whole))
    shrink(model, {f"0.{name}": indices for name, indices in kept.items()}, {})
    assert repr(model[0]) == repr(part)
    shapes, expected = ({n: t.shape for n, t in module.state_dict().items()} for module in (model[0], part))
    assert shapes == expected
