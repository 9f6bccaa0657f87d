"""Balanced scores: every layer sums to the flow, chains give the paper's masks, and no layer dies under the guard."""

import functools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import synflow
from blocks import Add
from checks import kept, mlp
from strategies import KINDS, chains, networks
from synflow.engine import EVERYTHING_ON, using
from synflow.flow.measure import measure
from synflow.flow.normalised import normalised
from synflow.flow.passes import WITHOUT_SHIFTS
from synflow.flow.paths import cuts, reach
from synflow.models.built_in import build
from synflow.network.private_copy import open_network
from synflow.pruning.live_layers import FAILURES_BEFORE_SKELETON, LayerGuard
from synflow.pruning.settings import checked_run
from synflow.pruning.skeleton import FROM_INPUTS, Skeleton, find_skeleton, short_path
from zoo import ZOO


def alive(network, masks):
    found = reach(network, masks)
    return {name for name, mask in found.on_path.items() if found.connected and bool(mask.any())}


def residual(width=12, blocks=3, seed=0):
    """A trunk with branches that carry little beside it: the paper's flow empties them."""
    torch.manual_seed(seed)
    layers = [nn.Linear(6, width, bias=False)]
    for _ in range(blocks):
        branch = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False))
        for parameter in branch.parameters():
            parameter.data *= 0.1
        layers.append(Add(branch, nn.Identity()))
    return nn.Sequential(*layers, nn.Linear(width, 4, bias=False)).double(), torch.ones(1, 6, dtype=torch.float64)


@given(networks(kinds=("residual", "concat", "grouped", "attention", "gated"), zeros=False, dtype=torch.float64))
def test_every_layer_sums_to_the_flow(network):
    opened = open_network(network.model, network.example)
    with normalised(opened):
        flow = measure(opened)
    scores = synflow.score(network.model, network.example, "balanced")
    exact = cuts(opened) if not flow.had_shifts or cuts(opened) == set(opened.weights) else frozenset()
    for name, score in scores.items():
        if name in exact:
            assert torch.equal(score, flow.scores[name])
        else:
            assert float(score.sum()) == pytest.approx(flow.value, rel=1e-9) or not bool(flow.scores[name].any())


def test_a_bias_behind_a_layer_does_not_lower_its_scores():
    """The flow that starts at the last bias passes no layer; cuts sum to the whole flow in spite of it."""
    model, example = residual()
    model[-1].bias = nn.Parameter(torch.full((4,), 1e3, dtype=torch.float64))
    sums = {name: float(score.sum()) for name, score in synflow.score(model, example, "balanced").items()}
    assert list(sums.values()) == pytest.approx([sums["0.weight"]] * len(sums), rel=1e-9)
    paper = {name: float(score.sum()) for name, score in synflow.score(model, example).items()}
    assert paper["0.weight"] == pytest.approx(paper["4.weight"])
    assert paper["0.weight"] < 0.5 * sums["0.weight"]
    # So no step removes a whole layer: one measurement before each step, one after the last, none for a second try.
    masks = synflow.prune(model, example, compression=20, steps=30, score="balanced", engine="fast")
    assert masks.about["measurements"] <= 32


@settings(max_examples=10)
@given(chains(dtype=torch.float64, zeros=False), st.integers(2, 8), st.floats(2, 20))
def test_on_chains_masks_are_those_of_the_paper_to_the_last_bit(network, steps, compression):
    opened = open_network(network.model, network.example)
    if any(isinstance(module, nn.LayerNorm | nn.GroupNorm) for module in network.model.modules()):
        return
    assert measure(opened, options=WITHOUT_SHIFTS).value > 0
    if cuts(opened) != set(opened.weights):
        return  # a bias adds terms that do not meet the layers before it
    how = dict(density=max(len(opened.weights), opened.size / compression) / opened.size, steps=steps, guard=False)
    paper = synflow.prune(network.model, network.example, **how)
    balanced = synflow.prune(network.model, network.example, score="balanced", **how)
    assert all(torch.equal(paper[name], balanced[name]) for name in paper)


def prune_and_check(model, example, keep, **how):
    """Prune step by step: exact counts, nested masks, and every layer alive as long as the skeleton has room."""
    network = open_network(model, example)
    before = whole(network)
    first, least = alive(network, before), find_skeleton(network, before, keep)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in synflow.iterate(model, example, density=keep / network.size, score="balanced", **how):
            assert all(not bool((mask & ~before[name]).any()) for name, mask in step.masks.items())
            assert step.kept == kept(step.masks)
            before, live = step.masks, alive(network, step.masks)
            assert live or not first, "the network is disconnected"
            assert live == first or step.kept < least.size, f"{first - live} died at {step.kept} of {least.size}"
        masks = synflow.prune(model, example, density=keep / network.size, score="balanced", **how)
    assert kept(masks) == keep
    dead = first - alive(network, masks)
    assert masks.about["layers"] == len(first)
    assert set(masks.about.get("given_up", "").split(", ")) - {""} == dead
    assert bool(dead) == any("were given up" in str(one.message) for one in caught)
    return masks


def whole(network):
    return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in network.weights.items()}


class ClassToken(nn.Module):
    """A transformer with a class token, positions, fused QKV and a zero-initialised head."""

    def __init__(self, width, depth, scale):
        super().__init__()
        self.stem, self.head = nn.Linear(3, width, bias=False), nn.Linear(width, 4)
        self.token, self.places = (nn.Parameter(torch.full((1, n, width), scale)) for n in (1, 4))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 1, 6, batch_first=True) for _ in range(depth))
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.stem(x)], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


ALL_KINDS = tuple(sorted({*KINDS, "tied", "recurrent", "transposed"}))


@settings(max_examples=max(10, settings.default.max_examples // 4))
@given(networks(kinds=ALL_KINDS, zeros=False), st.data(), st.sampled_from([1, 4, 12, None]))
def test_no_layer_dies_while_the_count_allows_it_and_the_others_are_named(network, data, steps):
    opened = open_network(network.model, network.example)
    keep = data.draw(st.integers(max(kept(short_path(opened)), 1), opened.size))
    schedule = "certified" if steps is None else data.draw(st.sampled_from(["exponential", "linear"]))
    prune_and_check(network.model, network.example, keep, steps=steps, schedule=schedule)


@pytest.mark.parametrize("scale", [0.02, 1.0])
@pytest.mark.parametrize("steps", [1, 10, None])
def test_class_tokens_fused_projections_and_zero_heads_stay_alive(scale, steps):
    model, example = ClassToken(4, 1, scale), torch.ones(1, 3, 3)
    # A path from the input to the class token needs six weights: stem, queries, keys, values, projection and head.
    for keep in (6, 7, 9, 14, 46) if steps == 1 else (7, 46):
        prune_and_check(model, example, keep, steps=steps, schedule="certified" if steps is None else None)


@pytest.mark.parametrize("keep", [2, 3, 5, 7, 8, 9, 20])
@pytest.mark.parametrize("engine", ["fast", "plain"])
def test_every_count_of_a_residual_network_and_both_engines(keep, engine):
    model, example = residual()
    masks = prune_and_check(model, example, keep, steps=6, engine=engine)
    assert ("given_up" in masks.about) == (keep < 8)


@pytest.mark.parametrize("scope", ["layer", "uniform", "erk"])
@pytest.mark.parametrize("schedule", ["exponential", "certified"])
def test_every_scope_keeps_layers_alive(scope, schedule):
    model, example = residual()
    for keep in (10, 40, 200):
        prune_and_check(
            model, example, keep, scope=scope, schedule=schedule, steps=4 if schedule != "certified" else None
        )


def test_given_masks_and_selections_are_respected():
    model, example = residual()
    network = open_network(model, example, protect="0*")
    start = synflow.prune(model, example, density=0.5, score="magnitude", protect="0*")
    masks = synflow.prune(model, example, density=0.03, score="balanced", protect="0*", masks=start, steps=3)
    assert masks.keys() == network.weights.keys()
    assert "0.weight" not in masks
    assert all(not bool((mask & ~start[name]).any()) for name, mask in masks.items())
    assert alive(network, masks) == alive(network, start)


class Twice(nn.Module):
    """A branch that is called twice: a term meets its weights up to twice."""

    def __init__(self, width=10):
        super().__init__()
        self.stem, self.branch, self.head = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, x):
        x = self.stem(x)
        for _ in range(2):
            x = x + 0.1 * torch.relu(self.branch(x))
        return self.head(x)


@pytest.mark.parametrize("schedule", ["exponential", "certified"])
def test_modules_that_are_called_twice_stay_alive(schedule):
    for keep in (3, 5, 40):
        masks = prune_and_check(
            Twice(), torch.ones(1, 6), keep, schedule=schedule, steps=None if schedule == "certified" else 3
        )
        assert "given_up" not in masks.about


def test_a_selection_is_balanced_among_itself():
    model, example = residual()
    chosen = ["1*", "2*"]
    network = open_network(model, example, select=chosen)
    masks = synflow.prune(model, example, density=8 / network.size, score="balanced", select=chosen, steps=4)
    assert masks.keys() == network.weights.keys() == {f"{i}.left.{j}.weight" for i in (1, 2) for j in (0, 2)}
    assert alive(network, masks) == set(masks)
    assert kept(masks) == 8


@pytest.mark.slow
def test_a_network_of_1202_layers_keeps_every_layer_alive():
    torch.manual_seed(0)
    model, example = build("resnet1202", classes=10, input_shape=(3, 32, 32)), torch.ones(1, 3, 8, 8)
    scores = synflow.score(model, example, "balanced")
    sums = torch.stack([score.sum(dtype=torch.float64) for score in scores.values()])
    torch.testing.assert_close(sums, sums[:1].expand_as(sums), rtol=1e-4, atol=0)
    masks = synflow.prune(model, example, compression=100, score="balanced", steps=4)
    network = open_network(model, example)
    assert kept(masks) == round(network.size / 100)
    assert alive(network, masks) == set(network.weights)


class Mixer(nn.Module):
    """Tokens and channels are mixed in turn; all weights of the zero-initialised head tie."""

    def __init__(self, width=16, tokens=6):
        super().__init__()
        self.stem, self.head = nn.Linear(4, width, bias=False), nn.Linear(width, 40, bias=False)
        self.tokens = nn.ModuleList(nn.Linear(tokens, tokens, bias=False) for _ in range(3))
        self.channels = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        x = self.stem(x)
        for tokens, channels in zip(self.tokens, self.channels, strict=True):
            x = x + tokens(x.transpose(1, 2)).transpose(1, 2)
            x = x + channels(x)
        return self.head(x.mean(1))


@pytest.mark.parametrize("steps", [1, 3])
def test_a_coarse_step_does_not_take_a_head_whose_weights_all_tie(steps):
    model, example = Mixer(), torch.ones(1, 6, 4)
    masks = prune_and_check(model, example, 60, steps=steps)
    assert "given_up" not in masks.about


def test_the_papers_flow_empties_branches_and_shares_do_not():
    model, example = residual()
    network = open_network(model, example)
    paper = synflow.prune(model, example, compression=8)
    shares = synflow.prune(model, example, compression=8, score="balanced")
    assert len(alive(network, paper)) < len(paper)
    assert alive(network, shares) == set(shares)
    assert kept(shares) == kept(paper)


def test_below_the_fewest_weights_layers_are_given_up_and_named():
    model, example = residual()
    network = open_network(model, example)
    masks = synflow.prune(model, example, density=5 / network.size, score="balanced")
    assert kept(masks) == 5
    assert synflow.certify(model, masks, example).connected


def test_the_fewest_weights_of_a_chain_and_of_a_residual_network():
    chain = mlp(5, 9, 8, 3)
    found = synflow.limits(chain, torch.ones(1, 5))
    assert (found.layers, found.for_path, found.for_layers, found.exact) == (3, 3, 3, True)
    model, example = residual()
    found = synflow.limits(model, example)
    assert found.layers == found.for_layers == 8
    assert found.for_path == 2
    assert "every layer alive needs 8" in str(found)


def test_limits_of_a_class_token_count_what_an_input_needs_and_every_count_above_prunes():
    model, example = ClassToken(4, 1, 1.0), torch.ones(1, 3, 3)
    found = synflow.limits(model, example)
    # From the token one weight leads to the output, from the input stem, queries, keys, values, projection and head.
    assert (found.path_bound, found.for_path, found.layers, found.for_layers) == (4, 6, 6, 8)
    assert "a path needs between 4 and 6, every layer alive needs between 6 and 8" in str(found)
    assert synflow.max_compression(model, example) == found.weights / 6
    network = open_network(model, example)
    for keep in range(found.for_path, found.for_layers + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that layers are given up
            masks = synflow.prune(model, example, density=keep / found.weights, score="balanced", steps=1)
        dead = set(network.weights) - alive(network, masks)
        assert kept(masks) == keep
        assert reach(network, masks).connected
        assert set(masks.about.get("given_up", "").split(", ")) - {""} == dead
        assert bool(dead) == (keep < found.for_layers)
    for score in ("synflow", "balanced"):
        with pytest.raises(synflow.SynflowError, match=r"needs 6 \(the fewest that were found\)"):
            synflow.prune(model, example, density=5 / found.weights, score=score)


class Gate(nn.Module):
    """A layer and a gate of two layers: a term meets what comes before it twice."""

    def __init__(self, width):
        super().__init__()
        self.layer, self.squeeze, self.excite = nn.Linear(width, width), nn.Linear(width, 2), nn.Linear(2, width)

    def forward(self, x):
        x = self.layer(x)
        return x * torch.sigmoid(self.excite(torch.relu(self.squeeze(x))))


@pytest.mark.parametrize("gates", [1, 5])
def test_limits_of_gates_in_series_count_each_weight_once(gates):
    torch.manual_seed(0)
    model, example = nn.Sequential(*(Gate(4) for _ in range(gates)), nn.Linear(4, 3)), torch.ones(1, 4)
    found = synflow.limits(model, example)
    layers = 3 * gates + 1  # per use a path meets the first layer 2 ** gates times
    assert found.path_bound == found.layers == layers
    assert layers <= found.for_path <= found.for_layers <= layers + gates
    masks = synflow.prune(model, example, density=found.for_layers / found.weights, score="balanced", steps=2)
    certificate = synflow.certify(model, masks, example)
    assert certificate.connected
    assert not certificate.dead_layers
    assert certificate.max_compression == found.weights / layers


@pytest.mark.parametrize("score", ["synflow", "synflow_l2"])
@pytest.mark.parametrize("schedule", ["exponential", "certified"])
def test_asked_for_the_guard_keeps_the_layers_of_every_flow_score_alive(score, schedule):
    model, example = residual()
    network = open_network(model, example)
    how = dict(score=score, schedule=schedule, density=60 / network.size)
    assert len(alive(network, synflow.prune(model, example, **how))) < len(network.weights)
    masks = synflow.prune(model, example, guard=True, **how)
    assert alive(network, masks) == set(network.weights)
    assert kept(masks) == 60


def mine(network, masks):  # noqa: ARG001
    """A user's score that empties every layer but the last."""
    return {name: torch.full(weight.shape, float(i)) for i, (name, weight) in enumerate(network.weights.items())}


@pytest.mark.parametrize("score", ["magnitude", "random", mine])
@pytest.mark.parametrize("compression", [10, 60])
def test_a_skeleton_guards_any_score(score, compression):
    model, example = residual(seed=3)
    network = open_network(model, example)
    free = synflow.prune(model, example, compression=compression, score=score, guard=False)
    held = synflow.prune(model, example, compression=compression, score=score, guard=True)
    assert kept(free) == kept(held)
    assert alive(network, held) == set(held)
    assert held.about["kept_by_guard"] == sum(int((held[name] & ~free[name]).sum()) for name in held)
    assert held.about["kept_by_guard"] <= held.about["skeleton"]
    assert "kept_by_guard" not in free.about


GUARDED = ["magnitude", "random", "snip", "grasp", "force", mine]


@pytest.mark.parametrize("name", sorted(ZOO))
def test_no_score_disconnects_the_zoo_or_kills_a_layer_that_has_room(name):
    sample = ZOO[name]()
    network = open_network(sample.model, sample.example)
    fewest, first = max(kept(short_path(network)), 1), alive(network, whole(network))
    smallest = functools.cache(lambda keep: find_skeleton(network, whole(network), keep).size)
    for index, score in enumerate(GUARDED):
        keep = max(round(network.size / (100, 1000)[index % 2]), fewest)
        how = dict(data=sample.data, loss=sample.loss) if score in ("snip", "grasp", "force") else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            masks = synflow.prune(
                sample.model, sample.example, density=keep / network.size, score=score, guard=True, **how
            )
        live = alive(network, masks)
        assert kept(masks) == keep
        assert reach(network, masks).connected
        assert first - live == set(masks.about.get("given_up", "").split(", ")) - {""}
        if first - live:
            assert smallest(keep) > keep


def test_a_protect_pattern_that_leaves_nothing_to_remove_is_an_error():
    model, example = residual()
    with pytest.raises(synflow.SynflowError, match="protect"):
        synflow.prune(model, example, compression=2, score="magnitude", guard=True, protect="*")


def test_of_two_branches_that_live_alone_the_one_with_less_flow_is_given_up():
    model, example = residual(width=1, blocks=2)
    for parameter in model[2].parameters():
        parameter.data *= 0.01
    network = open_network(model, example)
    skeleton = find_skeleton(network, whole(network), 5)
    assert skeleton.size == 6
    assert skeleton.shrink_to(5)
    assert skeleton.given_up == ["2.left.0.weight", "2.left.2.weight"]  # neither lives without the other
    with pytest.warns(UserWarning, match="lightest first: 2.left.0.weight, 2.left.2.weight, 1.left.0.weight") as told:
        masks = synflow.prune(model, example, density=2 / network.size, score="balanced", steps=1)
    assert [warning.filename for warning in told] == [__file__]  # it points at the line of the caller
    assert masks.about["given_up"].startswith("2.left.0.weight, 2.left.2.weight, 1.left.0.weight")
    assert (skeleton.size, skeleton.needed) == (5, skeleton.layers - set(skeleton.given_up))


def test_of_light_layers_the_one_that_lives_alone_is_given_up():
    """The lightest branch has two layers, neither of which lives without the other; one layer is enough."""
    pair, single = mlp(1, 1, 1), mlp(1, 1)
    for branch, weight in ((pair, 0.01), (single, 0.1)):
        for parameter in branch.parameters():
            nn.init.constant_(parameter, weight)
    layers = [nn.Linear(3, 1), Add(pair, nn.Identity()), Add(single, nn.Identity()), nn.Linear(1, 2)]
    network = open_network(nn.Sequential(*layers), torch.ones(1, 3))
    skeleton = find_skeleton(network, whole(network), 4)
    assert skeleton.size == 5
    assert skeleton.shrink_to(4)
    assert (skeleton.size, skeleton.given_up) == (4, ["2.left.0.weight"])


def test_a_skeleton_built_from_paths_keeps_every_layer_alive():
    for make in (
        residual,
        lambda: (ClassToken(4, 1, 1.0), torch.ones(1, 3, 3)),
        lambda: (Mixer(), torch.ones(1, 6, 4)),
    ):
        model, example = make()
        network = open_network(model, example)
        skeleton = Skeleton(network, whole(network))
        skeleton.build_anew()
        joined = skeleton.masks()
        assert skeleton.size < network.size / 2
        assert alive(network, joined) == skeleton.layers == skeleton.needed
        assert skeleton.thin_out()
        assert alive(network, skeleton.masks()) == skeleton.layers
        assert all(not bool((mask & ~joined[name]).any()) for name, mask in skeleton.masks().items())


def test_where_removals_fail_too_often_thinning_out_says_so():
    model, example = residual()
    network = open_network(model, example)
    skeleton = Skeleton(network, whole(network))
    assert not skeleton.thin_out(failures=1)
    assert alive(network, skeleton.masks()) == skeleton.layers


def test_thinning_out_ends_at_its_target_with_scores_of_what_is_left():
    model, example = residual()
    network = open_network(model, example)
    skeleton = Skeleton(network, whole(network))
    for target in (100, 60):
        assert skeleton.thin_out(target)
        assert skeleton.size == target
        left = measure(network, skeleton.masks(), options=FROM_INPUTS)
        assert skeleton._measured().flow.log2 == pytest.approx(left.log2, abs=1e-5)


def test_patience_is_that_of_one_step():
    """Failed removals of earlier steps do not add up until a skeleton is protected."""
    model, example = residual()
    run = checked_run(model, example, score="balanced", density=0.5, steps=4)
    engine = run.new_engine(spread=False)
    guard = LayerGuard(run, engine, engine.live_layers())
    guard._failures = FAILURES_BEFORE_SKELETON - 1
    assert guard.remove(engine.measure(), engine.count - 5)[1]
    assert (guard._failures, guard.skeleton) == (0, None)


def test_the_shorter_of_two_paths_is_held():
    """The skeleton itself has a path through the branch alone, all weights have one around it."""
    layers = [nn.Linear(2, 2), Add(mlp(2, 2, 2), nn.Identity()), nn.Linear(2, 1)]
    network = open_network(nn.Sequential(*layers), torch.ones(1, 2))
    masks = {name: mask.clone() for name, mask in whole(network).items()}
    masks["0.weight"][1] = False
    masks["2.weight"][:, 0] = False
    skeleton = Skeleton(network, masks)
    skeleton.hold_a_short_path(whole(network))
    assert kept(short_path(network, masks)) == 4
    assert kept(skeleton._path) == 2


def test_a_path_that_was_good_enough_is_not_taken_for_a_short_one():
    torch.manual_seed(0)
    model, example = nn.Sequential(*(Gate(4) for _ in range(5)), nn.Linear(4, 3)), torch.ones(1, 4)
    network = open_network(model, example)
    rough = kept(short_path(network, enough=network.size))
    assert rough > kept(short_path(network)) == kept(short_path(open_network(model, example)))


def test_scores_of_a_branch_with_next_to_no_flow_stay_finite():
    branch = mlp(4, 4, 4)
    for parameter in branch.parameters():
        nn.init.constant_(parameter, 2.0**-68)
    model = nn.Sequential(Add(branch, nn.Identity()), nn.Linear(4, 2))
    scores = synflow.score(model, torch.ones(1, 4), "balanced")
    assert all(bool(torch.isfinite(score).all()) and bool((score > 0).all()) for score in scores.values())


@pytest.mark.parametrize("seed", range(6))
def test_a_skeleton_found_before_the_first_step_serves_under_the_statistics_of_the_run(seed):
    """Below a weight or two per layer the skeleton comes first; what it records has to hold in the steps as well."""
    torch.manual_seed(seed)
    branch = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), Add(branch, nn.Identity()), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)
    )
    example = torch.ones(1, 3, 4, 4, dtype=torch.float64)
    masks, given_up = [], []
    for engine in ("fast", "plain"):
        with using(EVERYTHING_ON), pytest.warns(UserWarning, match="too few"):
            found = synflow.prune(model.double(), example, density=3 / 500, steps=2, score="balanced", engine=engine)
        masks.append(found)
        given_up.append(found.about["given_up"])
        assert "fallbacks" not in found.about
    assert given_up[0] == given_up[1]
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])
