"""The fast engine keeps the weights that the plain one keeps: on random networks and the zoo, at every step.

Both compute the same sums in another order, so scores that are equal in theory (each weight of a single path) may be
ranked by rounding. Where masks differ, the engines are run side by side on the same questions: the first answer that
differs has to be such a tie, or the test fails.
"""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import synflow
from blocks import Gate
from checks import kept
from served import watching
from strategies import KINDS, UNUSUAL, networks
from synflow.engine import EVERYTHING_ON, FastEngine, compiled, using
from synflow.errors import SynflowError
from synflow.flow.measure import measure
from synflow.flow.passes import WITHOUT_SHIFTS
from synflow.flow.paths import fewest_weights
from synflow.network.private_copy import open_network
from synflow.pruning import engine as door
from synflow.pruning.plain_engine import PlainEngine
from synflow.pruning.skeleton import short_path
from zoo import ZOO

# Scores this close, relative to each other, are equal in theory: float64 rounds at 1e-16.
TIE = 1e-12


class TieError(Exception):
    """The engines differ in weights whose scores are equal but for rounding."""


class SideBySide:
    """An engine that asks both, compares their answers and goes on with those of the plain one."""

    name = "side by side"
    fallbacks, measurements = {}, 0

    def __init__(self, *given):
        self.plain, self.fast = PlainEngine(*given), FastEngine(*given)

    @property
    def count(self):
        assert self.plain.count == self.fast.count
        return self.plain.count

    def measure(self, *args, **options):
        plain, fast = self.plain.measure(*args, **options), self.fast.measure(*args, **options)
        assert math.isclose(plain.flow.log2, fast.flow.log2, abs_tol=1e-9) or plain.flow.log2 == fast.flow.log2
        if options.get("gradients", True):
            unit = 2.0 ** (fast.flow.exponent - plain.flow.exponent)
            for name, score in fast.whole().items():
                torch.testing.assert_close(score * unit, plain.scores[name], rtol=1e-9, atol=1e-13 * plain.flow.value)
        return Pair(plain, fast)

    def lightest(self, scores, number, budget=math.inf):
        unit = 2.0 ** (scores.plain.flow.exponent - scores.fast.flow.exponent)
        plain = self.plain.lightest(scores.plain, number, budget)
        fast = self.fast.lightest(scores.fast, number, budget * unit)
        undo = self.fast.remove(fast)
        left = self.fast.masks()
        undo()
        other = torch.cat([scores.plain.scores[name][left[name] != mask] for name, mask in plain.masks.items()])
        if not len(other):
            return Pair(plain, fast)
        low, high = float(other.min()), float(other.max())
        near = high <= low * (1 + TIE)
        if plain.number != fast.number:  # whether one more is within the budget is then decided by rounding
            more = plain.total + (float(other.sum()) if fast.number > plain.number else 0.0)
            near = math.isclose(more, budget, rel_tol=TIE)
        if not near:
            raise AssertionError(f"{len(other)} weights that score {low!r} to {high!r} are kept by one engine only")
        raise TieError

    def weigh(self, removal, scores):
        return self.plain.weigh(removal.plain, scores.plain)

    def leaves_a_path(self, removal):
        plain, fast = self.plain.leaves_a_path(removal.plain), self.fast.leaves_a_path(removal.fast)
        assert plain == fast
        return plain

    def remove(self, removal):
        undo = [self.plain.remove(removal.plain), self.fast.remove(removal.fast)]
        self.compare()
        return lambda: [back() for back in undo]

    def removal(self, masks, scores):
        return Pair(self.plain.removal(masks, scores.plain), self.fast.removal(masks, scores.fast))

    def live_layers(self):
        plain, fast = self.plain.live_layers(), self.fast.live_layers()
        assert plain == fast
        return plain

    def keep_only(self, masks):
        self.plain.keep_only(masks)
        self.fast.keep_only(masks)
        self.compare()

    def masks(self):
        self.compare()
        return self.plain.masks()

    def compare(self):
        left = self.fast.masks()
        assert all(torch.equal(left[name], mask) for name, mask in self.plain.masks().items())


class Pair:
    """What the plain engine answers, with the answer of the fast one."""

    def __init__(self, plain, fast):
        self.plain, self.fast = plain, fast

    def __getattr__(self, name):
        return getattr(self.plain, name)


def steps_of(engine, model, example, how):
    """The masks after each step, or the kind of error at the end."""
    try:
        for step in synflow.iterate(model, example, engine=engine, **how):
            yield step.kept, step.masks
    except SynflowError as error:
        yield 0, {"error": torch.tensor([ord(letter) for letter in str(error)])}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def agree(model, example, **how):
    """Whether both engines keep the same weights at every step; False at a tie, and an error at anything else."""
    fast = list(steps_of("fast", model, example, how))
    plain = list(steps_of("plain", model, example, how))
    if len(fast) == len(plain) and all(a[0] == b[0] and same(a[1], b[1]) for a, b in zip(fast, plain, strict=True)):
        return True
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(door.ENGINES, "side by side", (__name__, "SideBySide"))
        with suppress(TieError):
            list(steps_of("side by side", model, example, how))
    # Without a tie among weights, the loop compared two sums that are equal but for rounding: all answers agreed.
    return False


def without_loops(patch):
    """Go without compiled loops, whatever was loaded before."""
    patch.setattr(compiled, "kernels", lambda: None)


settings_of_runs = st.fixed_dictionaries(
    {
        "score": st.sampled_from(["synflow", "balanced", "synflow_l2"]),
        "schedule": st.sampled_from(["exponential", "exponential", "linear", "linear_density", "certified"]),
        "scope": st.sampled_from(["global"] * 6 + ["layer", "erk"]),
        "guard": st.booleans(),
        "steps": st.integers(2, 6),  # for the certified schedule the most that it may take
    }
)
# How light weights are found: all listed, by compiled loops; as usual; without compiled loops.
variants = st.sampled_from(["listed", "listed", "usual", "not compiled"])
# A cut takes as long as several steps of such small networks; so one is made where a part of the weights has gone.
OFTEN = replace(EVERYTHING_ON, cut_when_left=0.7)
# Networks of a kind per example of other laws. With the usual 60 examples all kinds together have 1,170 networks. Kinds
# that take several times as long as the others have fewer.
SHARE = dict.fromkeys({**KINDS, **UNUSUAL}, 1.5) | {"attention": 0.5, "recurrent": 0.5, "residual": 0.5}
# At most this share of the networks of a kind may be left at a tie.
TIED = 0.25
# Each mechanism has to serve on at least this share of the networks of a kind (if they are enough to tell), and those
# for images on these kinds. Compiled loops serve on few networks of some kinds (5% of those with loops over samples),
# so that a larger share would fail by chance.
LEAST = {
    "recording": 0.5, "replay": 0.4, "cutting down": 0.1, "factored gradients": 0.2, "compiled loops": 0.01,
    "bounded scores": 0.01, "lists of light weights": 0.05, "brackets": 0.05,
}  # fmt: skip
LEAST_OF_IMAGES = {"folding": 0.05, "small convolutions": 0.3}
IMAGES = ("concat", "conv", "image")


@pytest.mark.parametrize("kind", sorted(SHARE))
def test_the_fast_engine_keeps_what_the_plain_one_keeps(kind):
    counted, used = Counter(), Counter()

    @settings(max_examples=max(3, round(settings.default.max_examples * SHARE[kind])))
    @given(networks(kinds=(kind,), dtype=torch.float64), settings_of_runs, st.floats(2, 100), variants)
    def compare(network, how, compression, variant):
        opened = open_network(network.model, network.example)
        assume(fewest_weights(opened) is not None)
        wanted = max(round(opened.size / compression), 1)
        keep = max(wanted, kept(short_path(opened, enough=wanted)))
        served = set()
        with watching(served), pytest.MonkeyPatch.context() as patch:
            if variant == "not compiled":
                without_loops(patch)
            with using(replace(OFTEN, list_share=1.0) if variant == "listed" else OFTEN):
                counted[agree(network.model, network.example, density=keep / opened.size, **how)] += 1
        used.update(served)

    compare()
    total = counted.total()
    print(kind, dict(counted), {name: round(number / total, 2) for name, number in used.items()})
    assert counted[False] <= max(2, TIED * total), counted  # of few runs, two tied ones say nothing
    if total >= 80:
        least = LEAST | (LEAST_OF_IMAGES if kind in IMAGES else {})
        assert {name: used[name] / total for name, share in least.items() if used[name] < share * total} == {}


def test_weights_that_are_zero_leave_no_flow_from_the_inputs():
    """Biases still give every weight a score, but the bound of the inputs' flow is zero and proves nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(Gate(3, 5, bias=True), nn.Linear(3, 1)).double()
    with torch.no_grad():
        model[0].down.weight[2] = 0.0
        model[1].weight[0, :2] = 0.0
    example = torch.ones(2, 3).double()
    assert measure(open_network(model, example), options=WITHOUT_SHIFTS).value == 0
    for thresholds in (OFTEN, replace(OFTEN, list_share=1.0)):
        with using(thresholds):
            assert agree(model, example, density=0.5, score="synflow", steps=2, guard=True)
    masks = synflow.prune(model, example, density=0.5, steps=2, guard=True)
    assert kept(masks) == 24
    assert synflow.certify(model, masks, example).connected


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_without_a_guard_a_network_whose_flow_comes_from_biases_alone_is_pruned(engine):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1)).double()
    model[0].weight.data, model[1].weight.data = torch.tensor([[1.0, 2.0], [0, 0]]), torch.tensor([[0, 3.0]])
    how = {"schedule": "certified", "guard": False, "engine": engine}
    masks = synflow.prune(model.double(), torch.ones(1, 2).double(), compression=2, **how)
    assert sum(int(mask.sum()) for mask in masks.values()) == 3


@pytest.mark.parametrize("score", ["synflow", "balanced", "synflow_l2"])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_zoo_is_pruned_alike(name, score):
    sample = ZOO[name]()
    example = torch.utils._pytree.tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf,
        sample.example,
    )
    with using(EVERYTHING_ON):
        assert agree(sample.model.double(), example, compression=3, steps=4, score=score)
