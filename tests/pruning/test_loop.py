"""The loop: every score, schedule and scope keeps exactly what was asked for, step by step."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import reference
import synflow
from checks import arrays, kept, mlp, nested, same, untouched
from synflow.pruning.safe_removal import PathGuard
from zoo import ZOO

COMBINATIONS = [
    (score, schedule, scope)
    for score, schedule, scope in itertools.product(sorted(synflow.SCORES), synflow.SCHEDULES, synflow.SCOPES)
    if schedule != "certified" or score.startswith(("synflow", "balanced"))
]


# A third of them, in which each pair of a score, a schedule and a scope occurs.
PAIRS = [
    (score, schedule, scope)
    for score, schedule, scope in COMBINATIONS
    if sum(list(t).index(n) for t, n in ((sorted(synflow.SCORES), score), (synflow.SCHEDULES, schedule),
                                         (synflow.SCOPES, scope))) % 3 == 0
]  # fmt: skip


def contract(name, combinations):
    """Exact counts, nested masks, finite scores, an untouched model, and the same again for the same seed."""
    sample = ZOO[name]()
    for score, schedule, scope in combinations:
        options = dict(
            density=0.3, score=score, schedule=schedule, scope=scope, data=sample.data, loss=sample.loss, seed=3,
            steps=None if schedule == "certified" else 2,
        )  # fmt: skip
        with untouched(sample.model):
            steps = list(synflow.iterate(sample.model, sample.example, **options))
            masks = synflow.prune(sample.model, sample.example, **options)
        weights = synflow.prunable(sample.model)
        size = sum(weight.numel() for weight in weights.values())
        before = {n: torch.ones_like(w, dtype=torch.bool) for n, w in weights.items()}
        for step in steps:
            assert kept(step.masks) == step.kept == round(step.density * size)
            if schedule != "certified":
                assert step.kept == round(size * synflow.SCHEDULES[schedule](step.index, 2, 0.3))
            assert all(bool(torch.isfinite(s).all()) for s in step.scores.values()), (score, schedule, scope)
            assert all(step.masks[n].shape == w.shape and step.masks[n].dtype == torch.bool for n, w in weights.items())
            assert nested(step.masks, before) or score == "force"
            before = step.masks
        assert [step.index for step in steps] == list(range(1, len(steps) + 1))
        assert kept(masks) == round(0.3 * size)
        assert same(masks, steps[-1].masks), (score, schedule, scope)


def share(name):
    """The combinations for a model, such that each meets a model, some two."""
    at = list(ZOO).index(name)
    return COMBINATIONS[at % 24 :: 24]


def test_each_pair_of_settings_meets_a_model():
    met = {combination for name in ZOO for combination in share(name)}
    assert met == set(COMBINATIONS)
    for left, right in itertools.combinations(range(3), 2):
        assert {(c[left], c[right]) for c in PAIRS} == {(c[left], c[right]) for c in COMBINATIONS}
    assert all(set(share(name)) & set(PAIRS) for name in ZOO)


@pytest.mark.parametrize("name", ZOO)
def test_contract(name):
    contract(name, [combination for combination in share(name) if combination in PAIRS])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ZOO)
def test_contract_of_the_other_combinations(name):
    contract(name, [combination for combination in share(name) if combination not in PAIRS])


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_contract_in_full(name):
    contract(name, COMBINATIONS)


@pytest.fixture
def chain():
    return mlp(8, 20, 20, 20, 5), torch.zeros(1, 8)


def test_the_papers_algorithm_to_the_letter():
    """Iterative SynFlow with the exponential schedule, against matrix products and a sort, after every step."""
    model = mlp(6, 12, 10, 4, dtype=torch.float64)
    weights = arrays(dict(model.named_parameters()))
    for compression, steps, schedule, twin in [
        (20, 10, "exponential", reference.density_exponential),
        (15, 7, "linear", reference.density_linear),
        (15, 7, "linear_density", reference.density_linear_in_density),
        (50, 1, "exponential", reference.density_exponential),
    ]:
        history = reference.iterative_synflow(weights, compression, steps, twin)
        found = synflow.iterate(
            model, torch.zeros(1, 6), compression=compression, steps=steps, schedule=schedule, guard=False
        )
        for step, expected in zip(found, history, strict=True):
            assert all((step.masks[name].numpy() == expected[name]).all() for name in weights)


def test_the_guard_changes_nothing_where_the_condition_holds(chain):
    model, example = chain
    free = list(synflow.iterate(model, example, compression=20, steps=30, guard=False))
    assert all(step.held for step in free)
    guarded = list(synflow.iterate(model, example, compression=20, steps=30))
    for left, right in zip(free, guarded, strict=True):
        assert same(left.masks, right.masks)
        assert same(left.scores, right.scores)
        assert right.substeps == 1
        assert left.pruned_fraction == pytest.approx(right.pruned_fraction)


def test_the_guard_splits_a_step_that_would_collapse_the_network(chain):
    model, example = chain
    free = synflow.prune(model, example, density=4 / 1060, steps=1, guard=False)
    assert not synflow.certify(model, free, example).connected
    (step,) = synflow.iterate(model, example, density=4 / 1060, steps=1)
    assert step.substeps > 1
    assert step.held
    assert synflow.certify(model, step.masks, example).connected


def test_a_step_in_parts_tells_its_largest_part_and_the_flow_before_it(chain, monkeypatch):
    parts, original = [], PathGuard.remove

    def watched(guard, scores, keep):
        share, complete = original(guard, scores, keep)
        parts.append((share, scores.flow.log2))
        return share, complete

    monkeypatch.setattr(PathGuard, "remove", watched)
    model, example = chain
    (step,) = synflow.iterate(model, example, density=200 / 1060, steps=1, margin=0.9)
    shares, flows = zip(*parts, strict=True)
    assert step.pruned_fraction == max(shares) > shares[-1]
    assert step.flow_log2 == flows[0] > flows[-1]


def test_what_a_step_tells(chain):
    model, example = chain
    steps = list(synflow.iterate(model, example, compression=10, steps=4))
    found = synflow.score(model, example)
    assert same(steps[0].scores, found)
    total = sum(score.double().sum() for score in found.values()) / 4
    gone = sum(found[name][~mask].double().sum() for name, mask in steps[0].masks.items())
    assert steps[0].pruned_fraction == pytest.approx((gone / total).item(), rel=1e-5)
    weights = list(arrays(dict(model.named_parameters())).values())
    assert steps[0].flow_log2 == pytest.approx(math.log2(reference.chain_flow(weights)), abs=1e-5)
    assert all(a.flow_log2 > b.flow_log2 for a, b in itertools.pairwise(steps))
    scored = synflow.score(model, example, masks=steps[0].masks)
    assert same(steps[1].scores, scored)
    assert steps[0].record.pruned_fraction == steps[0].pruned_fraction
    (other,) = synflow.iterate(model, example, compression=10, score="magnitude")
    assert (other.flow_log2, other.pruned_fraction, other.held) == (None, None, None)


def test_defaults_follow_the_paper(chain):
    model, example = chain
    data = [(torch.randn(4, 8), torch.randint(5, (4,)))]
    for score, steps in [
        ("synflow", 100),
        ("synflow_l2", 100),
        ("magnitude", 1),
        ("snip", 1),
        ("grasp", 1),
        ("force", 10),
    ]:
        masks = synflow.prune(model, example, compression=5, score=score, data=data)
        assert (len(masks.steps), masks.about["steps"], masks.about["schedule"]) == (steps, steps, "exponential")
    assert kept(synflow.prune(model, example, compression=100)) == round(1060 / 100)


def test_masks_remember_how_they_were_made(chain):
    model, example = chain
    masks = synflow.prune(model, example, density=0.25, steps=3, scope="erk", seed=7)
    assert masks.about["method"] == "synflow"
    assert masks.about["scope"] == "erk"
    assert (masks.about["weights"], masks.about["kept"], masks.about["seed"]) == (1060, 265, 7)
    assert masks.about["compression"] == 4
    assert masks.about["version"] == synflow.__version__
    assert [record.index for record in masks.steps] == [1, 2, 3]
    assert not any(hasattr(record, "masks") for record in masks.steps)


def test_density_and_compression_say_the_same(chain):
    model, example = chain
    assert same(
        synflow.prune(model, example, density=0.1, steps=3), synflow.prune(model, example, compression=10, steps=3)
    )
    everything = synflow.prune(model, example, compression=1, steps=3)
    assert kept(everything) == 1060


@pytest.mark.parametrize("density", [0.1234, 0.5, 1 / 3, 0.0101, 0.9999])
def test_the_count_is_rounded_not_cut(chain, density):
    model, example = chain
    assert kept(synflow.prune(model, example, density=density, steps=2)) == round(1060 * density)


# Continuing


@pytest.mark.parametrize("score", ["synflow", "magnitude", "random"])
def test_two_runs_are_one_longer_run(chain, score):
    model, example = chain
    whole = synflow.prune(model, example, density=1 / 16, score=score, steps=4)
    first = synflow.prune(model, example, density=1 / 4, score=score, steps=2)
    second = synflow.prune(model, example, density=1 / 16, score=score, steps=2, masks=first)
    assert nested(second, first)
    assert kept(second) == kept(whole)
    assert sum(int((second[n] ^ whole[n]).sum()) for n in whole) <= 4
    again = synflow.prune(model, example, density=1 / 4, score=score, steps=2, masks=first)
    assert same(again, first)


def test_masks_that_are_attached_are_continued(chain):
    model, example = chain
    first = synflow.prune(model, example, density=1 / 4, steps=2)
    expected = synflow.prune(model, example, density=1 / 16, steps=2, masks=first)
    synflow.attach(model, first)
    assert same(synflow.prune(model, example, density=1 / 16, steps=2), expected)


def test_masks_for_some_layers_leave_the_others_whole(chain):
    model, example = chain
    first = {"2.weight": torch.rand(20, 20) > 0.5}
    masks = synflow.prune(model, example, density=0.3, steps=2, masks=first)
    assert (masks["2.weight"] <= first["2.weight"]).all()
    assert list(masks) == list(synflow.prunable(model))


def test_given_masks_are_not_written_to(chain):
    model, example = chain
    first = synflow.prune(model, example, density=1 / 2, steps=1)
    copy = {name: mask.clone() for name, mask in first.items()}
    synflow.prune(model, example, density=1 / 16, steps=2, masks=first)
    assert same(first, copy)


def test_select_and_protect(chain):
    model, example = chain
    masks = synflow.prune(model, example, compression=10, protect="6", steps=2)
    assert list(masks) == ["0.weight", "2.weight", "4.weight"]
    assert kept(masks) == round(960 / 10)
    masks = synflow.prune(model, example, compression=10, select=["2", "4"], steps=2)
    assert list(masks) == ["2.weight", "4.weight"]


# Certified


def test_certified_steps_stay_below_the_margin(chain):
    model, example = chain
    counts = {}
    for margin in (0.9, 0.5, 0.1):
        steps = list(synflow.iterate(model, example, compression=50, schedule="certified", margin=margin))
        many = [step for step, before in zip(steps[1:], steps, strict=False) if before.kept - step.kept > 1]
        assert all(step.pruned_fraction < margin for step in many)
        assert all(step.held for step in steps)
        assert steps[-1].kept == round(1060 / 50)
        counts[margin] = len(steps)
    assert counts[0.9] < counts[0.5] < counts[0.1]


def test_a_cap_on_certified_steps_is_an_error_that_says_what_to_do(chain):
    model, example = chain
    message = r"3 certified steps at margin 0\.5 leave \d+ of 1060 weights, not yet 11; allow more steps"
    with untouched(model), pytest.raises(synflow.SynflowError, match=message):
        synflow.prune(model, example, compression=100, schedule="certified", steps=3)
    assert kept(synflow.prune(model, example, compression=100, schedule="certified", steps=500)) == 11


def test_certified_at_compression_one_takes_one_empty_step(chain):
    model, example = chain
    (step,) = synflow.iterate(model, example, compression=1, schedule="certified")
    assert (step.kept, step.pruned_fraction) == (1060, 0)


@pytest.mark.parametrize("score", ["magnitude", "snip", lambda network, _: dict(network.weights)])
def test_certified_needs_a_flow(chain, score):
    model, example = chain
    with pytest.raises(synflow.SynflowError, match="the certified schedule follows the flow"):
        synflow.prune(model, example, compression=10, schedule="certified", score=score)


# Callables


def test_a_score_of_ones_own(chain):
    model, example = chain
    seen = []

    def lottery(network, masks):
        seen.append((network.size, masks and kept(masks), network.seed))
        return {name: weight.abs() for name, weight in network.weights.items()}

    masks = synflow.prune(model, example, compression=10, score=lottery, steps=2, seed=4)
    assert same(masks, synflow.prune(model, example, compression=10, score="magnitude", steps=2))
    assert seen == [(1060, 1060, 4), (1060, 335, 4)]
    assert masks.about["method"] == "lottery"
    assert same(synflow.score(model, example, lottery), synflow.score(model, example, "magnitude"))


def test_a_score_of_ones_own_may_use_the_data(chain):
    model, example = chain
    data = [(torch.randn(4, 8), torch.randint(5, (4,)))]
    found = synflow.prune(model, example, compression=5, score=lambda n, m: synflow.SCORES["snip"](n, m), data=data)
    assert same(found, synflow.prune(model, example, compression=5, score="snip", data=data))


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda *_: {}, "the score must return one tensor per prunable weight"),
        (lambda n, _: {k: w[:1] for k, w in n.weights.items()}, r"0\.weight: scores have shape \(1, 8\), expected"),
        (lambda n, _: {k: w * math.nan for k, w in n.weights.items()}, r"0\.weight: 160 of 160 scores are nan"),
    ],
)  # fmt: skip
def test_bad_scores_are_refused(chain, score, message):
    model, example = chain
    with untouched(model), pytest.raises(synflow.SynflowError, match=message):
        synflow.prune(model, example, compression=5, score=score)


def test_a_schedule_of_ones_own(chain):
    model, example = chain
    fall = [0.9, 0.5, 0.2]
    steps = list(synflow.iterate(model, example, density=0.2, schedule=lambda k, *_: fall[k - 1], steps=3))
    assert [step.kept for step in steps] == [954, 530, 212]
    eager = list(synflow.iterate(model, example, density=0.2, schedule=lambda *_: 0.0, steps=3))
    assert [step.kept for step in eager] == [212, 212, 212]
    lazy = list(synflow.iterate(model, example, density=0.2, schedule=lambda *_: 7.0, steps=3))
    assert [step.kept for step in lazy] == [1060, 1060, 212]


def test_a_scope_of_ones_own(chain):
    model, example = chain

    def first_come(scores, candidates, keep):
        assert set(scores) == set(candidates)
        flat = torch.cat([mask.flatten() for mask in candidates.values()])
        chosen = flat & (flat.cumsum(0) <= keep)
        parts = chosen.split([mask.numel() for mask in candidates.values()])
        return {name: part.view(mask.shape) for (name, mask), part in zip(candidates.items(), parts, strict=True)}

    masks = synflow.prune(model, example, density=0.1, score="magnitude", scope=first_come)
    assert masks["0.weight"].flatten()[:106].all()
    with pytest.raises(synflow.SynflowError, match="the scope kept 1060 weights where 106 were asked for"):
        synflow.prune(model, example, density=0.1, score="magnitude", scope=lambda _, c, __: c)


# The rest


def test_settings_are_checked_before_the_first_step(chain):
    model, example = chain
    with pytest.raises(synflow.SynflowError, match="no score 'synflo'"):
        synflow.iterate(model, example, compression=10, score="synflo")
    with pytest.raises(synflow.SynflowError, match="needs data"):
        synflow.iterate(model, example, compression=10, score="snip")


def test_progress_goes_to_stderr_only(chain, capfd):
    model, example = chain
    synflow.prune(model, example, compression=10, steps=5)
    assert capfd.readouterr() == ("", "")
    synflow.prune(model, example, compression=10, steps=5, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "prune (synflow)" in err
    assert "5/5" in err
    list(synflow.iterate(model, example, compression=10, schedule="certified", progress=True))
    assert "prune (synflow)" in capfd.readouterr().err


def test_reproducible_whatever_the_global_generator(chain):
    model, example = chain
    data = [(torch.randn(4, 8), torch.randint(5, (4,)))]
    model.insert(1, nn.Dropout(0.5))
    for score in ("random", "snip", "grasp", "obd"):
        torch.manual_seed(1)
        first = synflow.prune(model, example, compression=10, score=score, data=data, steps=2, seed=5)
        torch.manual_seed(2)
        assert same(first, synflow.prune(model, example, compression=10, score=score, data=data, steps=2, seed=5))
        assert not same(first, synflow.prune(model, example, compression=10, score=score, data=data, steps=2, seed=6))


def test_weight_normed_layers_stay_dense():
    """A row that is all pruned would be divided by its length of zero."""
    sample = ZOO["weight_norm"]()
    for score in ("synflow", "snip", "obd", "force"):
        masks = synflow.prune(
            sample.model, sample.example, compression=10, score=score, steps=4, data=sample.data, guard=False
        )
        assert kept(masks) == round(sum(mask.numel() for mask in masks.values()) / 10)
        assert list(masks) == ["2.weight", "4.weight"]


def test_zero_initialised_branches_are_not_pruned_blindly():
    """Behind a batch norm whose gains are zero scores are as if the gains were one."""
    zero, plain = ZOO["zero_init_residual"](), ZOO["residual"]()
    found = synflow.prune(zero.model, zero.example, compression=5, steps=5)
    assert same(found, synflow.prune(plain.model, plain.example, compression=5, steps=5))


INTERRUPTED = """
import copy, signal, torch, synflow
from synflow.engine import FastEngine

done, find = [], FastEngine.lightest

def stops(*args, **kwargs):
    if len(done) == 2:
        signal.raise_signal(signal.SIGINT)
    return find(*args, **kwargs)

FastEngine.lightest = stops
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
before = copy.deepcopy(model.state_dict())
for settings in ({"schedule": "exponential", "steps": 5}, {"schedule": "certified", "margin": 0.1}):
    done.clear()
    try:
        for step in synflow.iterate(model, torch.ones(1, 8), compression=5, **settings):
            done.append(step)
    except KeyboardInterrupt as stop:
        print(stop)
assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
"""


@pytest.mark.integration
def test_an_interrupt_tells_how_far_it_came():
    """A real signal while the third step is under way, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fixed, certified = done.stdout.splitlines()
    assert "2 of 5 steps, at density 0." in fixed
    assert "2 steps, at" in certified
