"""Laws that hold for every network: random chains, residual, concatenating, grouped, attention and gated ones.

`make test` draws SYNFLOW_EXAMPLES networks for each law, `make fuzz` thousands.
"""

import copy
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import synflow
from checks import kept, nested, untouched
from strategies import chains, networks
from synflow.engine import EVERYTHING_ON, Thresholds, using
from synflow.flow.measure import measure
from synflow.flow.passes import WITHOUT_SHIFTS
from synflow.flow.paths import connected, reach
from synflow.network.private_copy import open_network
from synflow.pruning.skeleton import short_path

doubles = networks(dtype=torch.float64)
seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0.01, 1.0)


@pytest.fixture(scope="module", params=["usual", "everything on"])
def parts(request):
    """The fast engine as it is used, and with every part of it at work on the smallest network."""
    with using(EVERYTHING_ON if request.param == "everything on" else Thresholds()):
        yield


def opened(network):
    return open_network(network.model, network.example)


def drawn_masks(network, seed, share):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(w.shape, generator=generator) < share for name, w in network.weights.items()}


@given(doubles, seeds, shares)
def test_flow_is_conserved_at_units_and_cuts(network, seed, share):
    """Dense and under any masks: inflow is outflow at each unit, and each cut carries the whole flow."""
    masks = drawn_masks(opened(network), seed, share)
    for given_masks in (None, masks):
        found = synflow.conservation(network.model, network.example, given_masks)
        assert found.unit_residual is None or found.unit_residual < 1e-10
        assert found.layer_residual is None or found.layer_residual < 1e-10
        if network.kind in ("mlp", "conv") and found.layers:
            assert set(found.cuts) == set(found.layers)


@pytest.mark.usefixtures("parts")
@given(networks(zeros=False), st.sampled_from(sorted(synflow.SCHEDULES)), st.sampled_from(sorted(synflow.SCOPES)),
       st.sampled_from(["synflow", "synflow_l2", "magnitude", "random"]), shares, st.integers(1, 4))  # fmt: skip
def test_counts_are_exact_masks_nested_and_the_model_untouched(network, schedule, scope, score, density, steps):
    # A rule for each layer may leave too few weights in one for a path: only a global scope can promise one.
    assume(schedule != "certified" or (score.startswith("synflow") and scope == "global"))
    size = opened(network).size
    wanted = max(round(size * density), 1)
    keep = max(wanted, kept(short_path(opened(network), enough=wanted)))
    options = dict(density=keep / size, schedule=schedule, scope=scope, score=score, guard=scope == "global")
    options["steps"] = None if schedule == "certified" else steps
    before = {name: torch.ones_like(w, dtype=torch.bool) for name, w in opened(network).weights.items()}
    with untouched(network.model):
        for step in synflow.iterate(network.model, network.example, **options):
            assert kept(step.masks) == step.kept
            assert nested(step.masks, before)
            before = step.masks
    assert kept(before) == keep


@given(networks(), seeds)
def test_signs_do_not_matter(network, seed):
    generator = torch.Generator().manual_seed(seed)
    twin = copy.deepcopy(network.model)
    flow = measure(opened(network))
    with torch.no_grad():
        for name in flow.scores:
            weight = twin.get_parameter(name)
            weight *= torch.randint(0, 2, weight.shape, generator=generator) * 2 - 1
    flipped = measure(open_network(twin, network.example))
    assert (flow.value, flow.exponent) == (flipped.value, flipped.exponent)
    assert all(torch.equal(flow.scores[name], flipped.scores[name]) for name in flow.scores)


@given(chains(dtype=torch.float64), st.data())
def test_the_scale_of_a_layer_of_a_chain_does_not_matter(network, data):
    """Scores over the flow are the same, to the last bit where the scale is a power of two and nothing divides."""
    twin = copy.deepcopy(network.model)
    flow = measure(opened(network), options=WITHOUT_SHIFTS)
    assume(flow.value > 0)
    powers = data.draw(st.booleans())
    with torch.no_grad():
        for name in flow.scores:
            by = data.draw(st.integers(-30, 30))
            twin.get_parameter(name).mul_(2.0**by if powers else 1.1**by)
    scaled = measure(open_network(twin, network.example), options=WITHOUT_SHIFTS)
    for name, score in flow.scores.items():
        torch.testing.assert_close(scaled.scores[name] / scaled.value, score / flow.value, rtol=1e-8, atol=1e-12)
    divides = any(isinstance(m, nn.LayerNorm | nn.GroupNorm) for m in twin.modules())
    if powers and not divides:
        assert math.log2(scaled.value / flow.value) == round(math.log2(scaled.value / flow.value))
        unit = scaled.value / flow.value
        assert all(torch.equal(scaled.scores[name], score * unit) for name, score in flow.scores.items())


@given(networks(kinds=("mlp",), dtype=torch.float64), seeds)
def test_renaming_hidden_units_renames_their_scores(network, seed):
    generator = torch.Generator().manual_seed(seed)
    twin = copy.deepcopy(network.model)
    layers = list(twin)
    rows, order = {}, None
    linear = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for index in linear:
            layer = layers[index]
            columns = torch.arange(layer.in_features) if order is None else order
            last = index == linear[-1]
            order = (
                torch.arange(layer.out_features) if last else torch.randperm(layer.out_features, generator=generator)
            )
            rows[f"{index}.weight"] = (order, columns)
            layer.weight.copy_(layer.weight[order][:, columns])
            if layer.bias is not None:
                layer.bias.copy_(layer.bias[order])
            following = layers[index + 1] if index + 1 < len(layers) else None
            if isinstance(following, nn.BatchNorm1d | nn.LayerNorm):
                for tensor in following.state_dict().values():
                    if tensor.dim():
                        tensor.copy_(tensor[order])
    flow, moved = measure(opened(network)), measure(open_network(twin, network.example))
    assert moved.log2 == pytest.approx(flow.log2, abs=1e-9) or flow.value == 0
    for name, (order, columns) in rows.items():
        expected = flow.scores[name][order][:, columns] * 2.0 ** (flow.exponent - moved.exponent)
        torch.testing.assert_close(moved.scores[name], expected, rtol=1e-9, atol=1e-300)


@pytest.mark.usefixtures("parts")
@given(
    networks(zeros=False), st.floats(0, 1), st.sampled_from([0.3, 0.5, 0.9]), st.sampled_from(["synflow", "synflow_l2"])
)
def test_certified_steps_never_disconnect(network, at, margin, score):
    """From the whole network to the largest compression, after every step."""
    whole = opened(network)
    least = max(kept(short_path(whole)), 1)
    keep = max(least, round(least * (whole.size / least) ** at))
    previous = whole.size
    steps = synflow.iterate(
        network.model, network.example, density=keep / whole.size, schedule="certified", margin=margin, score=score
    )
    for step in steps:
        assert connected(whole, step.masks)
        assert step.kept < previous or previous == keep
        previous = step.kept
    assert previous == keep


@given(networks(zeros=False, dtype=torch.float64), seeds, shares)
def test_paths_are_where_the_flow_is(network, seed, share):
    """Reachability and positive scores agree; where a maximum chooses, scores are part of what is reachable."""
    whole = opened(network)
    masks = drawn_masks(whole, seed, share)
    found, flow = reach(whole, masks), measure(whole, masks, options=WITHOUT_SHIFTS)
    assert found.connected == (flow.value > 0) == connected(whole, masks)
    chooses = any(isinstance(m, nn.MaxPool2d) for m in network.model.modules())
    for name, on_path in found.on_path.items():
        positive = flow.scores[name] > 0
        assert bool((positive <= on_path).all())
        assert chooses or torch.equal(positive, on_path)


@given(networks(kinds=("mlp", "conv", "residual", "concat", "grouped"), dtype=torch.float64), seeds, shares)
def test_the_union_bound(network, seed, share):
    """Removing a set loses at most the sum of its scores, where no divisor moves with the flow."""
    assume(not any(isinstance(m, nn.LayerNorm | nn.GroupNorm) for m in network.model.modules()))
    whole = opened(network)
    masks = drawn_masks(whole, seed, share)
    before, after = measure(whole, options=WITHOUT_SHIFTS), measure(whole, masks, options=WITHOUT_SHIFTS)
    lost = sum(float(score[~masks[name]].sum()) for name, score in before.scores.items())
    left = after.value * 2.0 ** (after.exponent - before.exponent)
    assert before.value - lost - 1e-9 * before.value <= left <= before.value * (1 + 1e-12)


@given(networks(), seeds)
def test_a_set_lighter_than_the_flow_leaves_a_path_in_any_architecture(network, seed):
    """Norms, softmax and gates included; weights go in any order as long as their scores stay below the flow."""
    whole = opened(network)
    flow = measure(whole, options=WITHOUT_SHIFTS)
    assume(flow.value > 0)
    generator = torch.Generator().manual_seed(seed)
    lightest_first = seed % 2 == 0
    keys = [(float(s), name, at) for name, score in flow.scores.items() for at, s in enumerate(score.flatten())]
    order = sorted(keys) if lightest_first else [keys[i] for i in torch.randperm(len(keys), generator=generator)]
    masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in whole.weights.items()}
    budget = flow.value * (1 - 1e-5)
    for score, name, at in order:
        if score < budget:
            budget -= score
            masks[name].view(-1)[at] = False
    assert connected(whole, masks)


@pytest.mark.usefixtures("parts")
@given(networks(), st.floats(0, 1), st.integers(1, 4), st.sampled_from(["synflow", "synflow_l2"]))
def test_guarded_steps_never_disconnect(network, at, steps, score):
    """At any compression up to the largest, and through weights that are not zero."""
    whole = opened(network)
    assume(measure(whole, options=WITHOUT_SHIFTS).value > 0)
    nonzero = {name: weight != 0 for name, weight in whole.weights.items()}
    assume(connected(whole, nonzero))  # a tensor that is zero everywhere counts as ones: no path avoids its zeros
    least = max(kept(short_path(whole, nonzero)), 1)
    keep = max(least, round(least * (whole.size / least) ** at))
    masks = synflow.prune(network.model, network.example, density=keep / whole.size, steps=steps, score=score)
    assert kept(masks) == keep
    assert connected(whole, masks)
    assert measure(whole, masks, options=WITHOUT_SHIFTS).value > 0
