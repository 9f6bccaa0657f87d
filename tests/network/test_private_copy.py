"""Scores work on a private copy: the model stays bit for bit as it was, whatever happens."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from checks import Function, assert_unchanged, busy_model, kept, mlp, snapshot, untouched
from synflow.flow import dispatch as linearization
from synflow.flow.measure import measure
from synflow.flow.passes import WITHOUT_SHIFTS
from synflow.network.private_copy import open_network, private_copy
from zoo import ZOO

DATA_SCORES = ("snip", "grasp", "obd", "force")


@pytest.fixture(autouse=True)
def _no_mode_left():
    """A mode that an interrupted pass leaves behind fails its own test, not every test after it."""
    depth = torch._C._len_torch_function_stack()
    yield
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()
    linearization._ACTIVE.mode = None


@pytest.mark.parametrize("score", sorted(synflow.SCORES))
@pytest.mark.parametrize("training", [True, False])
def test_scoring_touches_nothing(score, training):
    model, data = busy_model()
    model[5].train(training)
    with untouched(model):
        synflow.score(model, data[0][0][:1], score, data)
        synflow.prune(model, data[0][0][:1], compression=5, score=score, data=data, steps=2)


def test_certificates_and_theory_touch_nothing():
    model, data = busy_model()
    example = data[0][0][:1]
    masks = synflow.prune(model, example, compression=5, steps=2)
    with untouched(model):
        synflow.certify(model, masks, example)
        synflow.max_compression(model, example)
        synflow.conservation(model, example)
        synflow.critical_compression(model, example, score="magnitude")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("score", ["synflow", "snip", "grasp"])
def test_the_callers_modes_change_nothing_and_come_back(mode, score):
    model, data = busy_model()
    options = dict(compression=5, score=score, data=data, steps=2)
    expected = synflow.prune(model, data[0][0][:1], **options)
    with mode(), untouched(model):
        found = synflow.prune(model, data[0][0][:1], **options)
    assert all(torch.equal(found[n], expected[n]) for n in expected)


class StopError(Exception):
    pass


@pytest.mark.parametrize("score", ["synflow", *DATA_SCORES])
@pytest.mark.parametrize("where", ["first", "last"])
def test_an_exception_in_forward_leaves_the_model_and_the_generator(score, where):
    model, data = busy_model()
    calls = []

    def fail(*_):
        calls.append(0)
        if where == "first" or len(calls) > 3:
            raise StopError

    model[7].register_forward_hook(fail)
    before = snapshot(model)
    with pytest.raises((StopError, synflow.SynflowError)):
        synflow.prune(model, data[0][0][:1], compression=5, score=score, data=data, steps=3)
    assert_unchanged(model, before)


class Fragile(torch.autograd.Function):
    """Fails on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise StopError


@pytest.mark.parametrize("score", DATA_SCORES)
def test_an_exception_on_the_way_back_leaves_the_generator_while_it_is_handled(score):
    """Also while the error is still being looked at: nothing may wait for the garbage collector."""
    model = Function(lambda self, x: Fragile.apply(F.dropout(self.layer(x))), layer=nn.Linear(3, 3))
    data = [(torch.randn(2, 3), torch.tensor([0, 1]))]
    before = snapshot(model)
    try:
        synflow.score(model, torch.zeros(1, 3), score, data)
    except StopError:
        assert_unchanged(model, before)
    else:
        pytest.fail("the error was swallowed")


def test_what_a_model_writes_in_its_forward_pass_stays_in_the_copy():
    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.temperature = nn.Parameter(torch.tensor(2.0))
            self.register_buffer("calls", torch.zeros(()))
            self.count, self.log = 0, []

        def forward(self, x):
            self.calls += 1
            self.count += 1
            self.log.append(self.count)
            with torch.no_grad():
                self.temperature.clamp_(0.1, 1.0)
            return self.layer(x) * self.temperature

    model = Writer()
    data = [(torch.randn(2, 3), torch.tensor([0, 1]))]
    with untouched(model):
        for score in ("synflow", "snip"):
            synflow.prune(model, torch.zeros(1, 3), compression=2, score=score, data=data)
    assert (model.count, model.log) == (0, [])


def test_a_frozen_and_an_old_style_normed_model_can_be_copied():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)), nn.ReLU(), nn.Linear(3, 2))
    model(torch.randn(2, 3))
    twin = private_copy(model)
    assert twin is not model
    assert twin[2].weight is model[2].weight
    with untouched(model):
        assert kept(synflow.prune(model, torch.zeros(1, 3), compression=2)) == 3


def test_a_model_that_cannot_be_copied_is_named():
    model = nn.Linear(2, 2)
    model.lock = (each for each in range(3))
    message = r"Linear cannot be copied \(TypeError: .*deep-copyable"
    with untouched(model), pytest.raises(synflow.SynflowError, match=message):
        synflow.score(model, torch.zeros(1, 2))


def test_tied_and_recurrent_weights_are_replaced_in_every_place():
    sample = ZOO["rnn"]()
    network = open_network(sample.model, sample.example)
    doubled = {name: weight * 2 for name, weight in network.weights.items()}
    network.replace(doubled)
    for name, weight in network.model.named_parameters():
        assert name not in doubled or torch.equal(weight, doubled[name])
    layer = network.model[0].module
    assert [id(w) for w in layer._flat_weights] == [id(getattr(layer, n)) for n in layer._flat_weights_names]


@pytest.mark.parametrize(
    "example", [(torch.zeros(1, 3), torch.ones(1, 3)), dict(b=torch.zeros(1, 3), a=torch.ones(1, 3))]
)
def test_examples_by_position_and_by_name(example):
    model = Function(lambda self, a, b: self.left(a) + 2 * self.right(b), left=nn.Linear(3, 2), right=nn.Linear(3, 2))
    model.forward = lambda a, b: model.left(a) + 2 * model.right(b)
    found = measure(open_network(model, example), options=WITHOUT_SHIFTS)
    expected = model.left.weight.abs().sum() + 2 * model.right.weight.abs().sum()
    assert found.value * 2.0**found.exponent == pytest.approx(expected.item())


def test_examples_are_seen_by_shape_alone():
    model = mlp(3, 4, 2)
    examples = (torch.full((1, 3), torch.nan), torch.randn(1, 3), torch.randn(1, 3).half())
    found = [synflow.score(model, example) for example in examples]
    assert all(torch.equal(found[0][n], each[n]) for each in found for n in each)


def test_data_is_read_once_and_only_when_needed():
    reads = []

    def batches():
        reads.append(0)
        yield torch.randn(2, 3), torch.tensor([0, 1])

    class Loader:
        def __iter__(self):
            return batches()

    model = mlp(3, 4, 2)
    for score in ("synflow", "synflow_l2", "magnitude", "random"):
        synflow.prune(model, torch.zeros(1, 3), compression=2, score=score, data=Loader(), steps=2)
    assert reads == []
    synflow.prune(model, torch.zeros(1, 3), compression=2, score="grasp", data=Loader(), steps=3)
    assert reads == [0]
    synflow.prune(model, torch.zeros(1, 3), compression=2, score="grasp", data=batches(), steps=3)


# Ctrl-C


@pytest.mark.parametrize("score", ["synflow", "snip"])
def test_an_interrupt_at_any_line_leaves_the_model(score):
    """KeyboardInterrupt is raised at lines spread over the whole run, in the library's own code."""
    model, data = busy_model()
    model.train()
    options = dict(compression=5, score=score, data=data, steps=2)
    example = data[0][0][:1]
    lines = count_lines(lambda: synflow.prune(model, example, **options))
    assert lines > 500
    before = snapshot(model)
    for stop in random.Random(0).sample(range(lines), 25):
        with pytest.raises(KeyboardInterrupt):
            count_lines(lambda: synflow.prune(model, example, **options), stop)
        assert_unchanged(model, before)


def count_lines(run, stop=None):
    """Run, and count the lines of the library that are executed; raise KeyboardInterrupt at line `stop`."""
    home, seen = str(Path(synflow.__file__).parent), 0

    def trace(frame, event, _):
        nonlocal seen
        if not frame.f_code.co_filename.startswith(home):
            return None
        if event == "line":
            seen += 1
            if seen == (stop or 0) + 1 and stop is not None:
                raise KeyboardInterrupt
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(outer)
    return seen


SIGNALS = """
import random, signal, sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
import synflow
from checks import assert_unchanged, busy_model, snapshot

signal.signal(signal.SIGALRM, signal.default_int_handler)
model, data = busy_model()
model.train()
synflow.prune(model, data[0][0][:1], compression=2, steps=5)  # everything is imported now
draw = random.Random(0)
before = snapshot(model)
interrupted = 0
for trial in range({trials}):
    score = ("synflow", "snip", "grasp")[trial % 3]
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0005, 0.03))
        synflow.prune(model, data[0][0][:1], compression=20, score=score, data=data, steps=200)
    except KeyboardInterrupt:
        interrupted += 1
        assert_unchanged(model, before)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert_unchanged(model, before)
print(interrupted)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.integration
def test_real_signals_at_random_moments_leave_the_model():
    """A signal that raises KeyboardInterrupt, in a process of its own, in train mode with batch norm and dropout."""
    script = SIGNALS.format(tests=str(Path(__file__).parents[1] / "support"), trials=150)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    # Torch swallows an exception here and there; what counts is the model.
    assert int(done.stdout) > 140


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.integration
def test_ctrl_c_from_another_process():
    """SIGINT while a long run is under way: the process reports an untouched model and ends."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
import torch, synflow
from checks import assert_unchanged, busy_model, snapshot
model, data = busy_model()
before = snapshot(model)
try:
    for step in synflow.iterate(model, data[0][0][:1], compression=20, steps=100000):
        if step.index == 3:
            print("running", flush=True)
except KeyboardInterrupt:
    assert_unchanged(model, before)
    print("untouched", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "untouched\n"


@pytest.mark.parametrize("score", ["synflow", "snip", "grasp", "prospr"])
def test_examples_and_batches_stay_where_a_model_writes_into_its_input(score):
    torch.manual_seed(0)
    first, last = nn.Linear(6, 8).double(), nn.Linear(8, 3).double()
    found = []
    for double in (lambda x: x.mul_(2), lambda x: x * 2):
        model = Function(lambda self, x, how=double: self.last(self.first(how(x)).relu()), first=first, last=last)
        example, data = torch.ones(1, 6).double(), [(torch.ones(4, 6).double(), torch.tensor([0, 1, 2, 0]))]
        found.append(synflow.prune(model, example, compression=4, score=score, data=data, steps=3))
        synflow.compact(model, example, found[-1])
        assert torch.equal(example, torch.ones(1, 6).double())
        assert torch.equal(data[0][0], torch.ones(4, 6).double())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
