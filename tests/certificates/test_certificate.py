"""What a certificate says is measured anew and true."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import synflow
from blocks import Add
from checks import Function, kept, mlp, untouched
from graphs import graphs, paths

X = torch.zeros(1, 4)


def ones(model):
    return {name: torch.ones_like(p, dtype=torch.bool) for name, p in synflow.prunable(model).items()}


def test_a_pruned_network():
    model = mlp(4, 6, 5, 3, bias=True)
    masks = synflow.prune(model, X, compression=5, steps=10)
    with untouched(model):
        certificate = synflow.certify(model, masks, X)
    assert (certificate.total, certificate.kept, certificate.compression) == (69, 14, 69 / 14)
    assert certificate.connected
    assert certificate.empty_layers == ()
    assert certificate.max_compression == 69 / 3
    assert certificate.flow_log2 < certificate.flow_log2_before
    assert certificate.layer_residual < 1e-5
    assert certificate.unit_residual < 1e-5
    assert certificate.cuts == tuple(masks)
    assert [step.kept for step in certificate.steps] == [step.kept for step in masks.steps]
    assert certificate.theorem_held
    for row in certificate.layers:
        assert row.kept == int(masks[row.name].sum())
        assert row.shape == tuple(masks[row.name].shape)
        assert row.density == row.kept / row.total
        assert row.on_path <= row.kept


def test_a_disconnected_network_is_reported_though_every_layer_has_weights():
    model = mlp(4, 6, 3)
    masks = {"0.weight": torch.zeros(6, 4).bool(), "2.weight": torch.zeros(3, 6).bool()}
    masks["0.weight"][0], masks["2.weight"][:, 1] = True, True
    certificate = synflow.certify(model, masks, X)
    assert not certificate.connected
    assert certificate.empty_layers == ()
    assert certificate.idle == certificate.kept == 7
    assert certificate.effective_compression == math.inf
    assert certificate.flow_log2 == -math.inf
    assert "NO: no path from input to output is left" in str(certificate)
    assert "0 after" in str(certificate)


def test_an_empty_shortcut_is_empty_but_not_disconnected():
    model = Add(mlp(4, 5, 3), nn.Linear(4, 3))
    masks = ones(model)
    masks["right.weight"][:] = False
    certificate = synflow.certify(model, masks, X)
    assert certificate.connected
    assert certificate.empty_layers == ("right.weight",)
    assert certificate.idle == 0
    assert "empty layers  right.weight" in str(certificate)


def test_an_empty_layer_of_a_chain_is_both():
    model = mlp(4, 5, 3, bias=True)
    masks = ones(model)
    masks["0.weight"][:] = False
    certificate = synflow.certify(model, masks, X)
    assert (certificate.connected, certificate.empty_layers) == (False, ("0.weight",))
    assert certificate.idle == 15


def test_nothing_kept():
    model = mlp(4, 5, 3)
    certificate = synflow.certify(model, {name: ~mask for name, mask in ones(model).items()}, X)
    assert (certificate.kept, certificate.compression, certificate.connected) == (0, math.inf, False)
    assert "unlimited" in str(certificate) or "inf" in str(certificate)


@given(graphs())
def test_idle_weights_are_those_on_no_path(graph):
    model, example, masks, skips = graph
    certificate = synflow.certify(model, masks, example)
    on_some = {key for path in paths(masks, skips) for key in path}
    assert certificate.idle == kept(masks) - len(on_some)
    assert certificate.connected == bool(paths(masks, skips))
    assert certificate.empty_layers == tuple(name for name, mask in masks.items() if not mask.any())
    for row in certificate.layers:
        assert row.on_path == sum(name == row.name for name, _ in on_some)
    if on_some:
        assert certificate.effective_compression == certificate.total / len(on_some)


def test_steps_come_with_the_masks_or_are_given():
    model = mlp(4, 6, 3)
    steps = list(synflow.iterate(model, X, compression=5, steps=3))
    plain = dict(steps[-1].masks)
    assert synflow.certify(model, plain, X).steps == ()
    assert synflow.certify(model, plain, X).theorem_held is None
    assert "not recorded" in str(synflow.certify(model, plain, X))
    given = synflow.certify(model, plain, X, steps=steps)
    assert given.steps == synflow.prune(model, X, compression=5, steps=3).steps
    other = synflow.certify(model, synflow.prune(model, X, compression=5, score="magnitude"), X)
    assert "1 (not by flow, so nothing is promised)" in str(other)
    assert other.theorem_held is None


def test_a_step_that_broke_the_condition_is_told():
    model = mlp(4, 12, 12, 12, 3)
    masks = synflow.prune(model, X, density=5 / 372, steps=1, guard=False)
    certificate = synflow.certify(model, masks, X)
    assert certificate.theorem_held is False
    assert "held in 0 of 1" in str(certificate)
    guarded = synflow.certify(model, synflow.prune(model, X, density=5 / 372, steps=1), X)
    assert "1 split by the guard" in " ".join(str(guarded).split())
    assert guarded.connected


def test_zero_gains_are_noted():
    model = nn.Sequential(*[part for _ in range(5) for part in (nn.Linear(4, 4), nn.BatchNorm1d(4))])
    for norm in model[1::2]:
        nn.init.zeros_(norm.weight)
    certificate = synflow.certify(model, synflow.prune(model, X, compression=4, steps=3), X)
    assert len(certificate.notes) == 5
    text = str(certificate)
    assert text.count("counts as one") == 3
    assert "and 2 more of this kind" in text


class Deep(nn.Module):
    """Long names, many layers."""

    def __init__(self):
        super().__init__()
        inner = nn.ModuleDict({f"a_block_with_a_rather_long_name_{i}": nn.Linear(4, 4) for i in range(30)})
        self.an_encoder_with_a_long_name = nn.ModuleDict({"and_a_stage_with_another": inner})
        self.norm = nn.BatchNorm1d(4)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        layers = self.an_encoder_with_a_long_name["and_a_stage_with_another"].values()
        return self.norm(sum(layer(x) for layer in layers))


@pytest.mark.parametrize("density", [1.0, 0.02])
def test_every_line_is_at_most_a_hundred_columns_wide(density):
    model = Deep()
    masks = synflow.prune(model, X, density=density, steps=3)
    certificate = synflow.certify(model, masks, X)
    assert bool(certificate.empty_layers) == (density < 1)
    assert all(len(line) <= 100 for line in str(certificate).splitlines())
    assert str(certificate).startswith("certificate\n  weights ")


def test_machines_can_read_it():
    model = mlp(4, 6, 3)
    told = synflow.certify(model, synflow.prune(model, X, compression=5, steps=3), X).as_dict()
    again = json.loads(json.dumps(told))
    assert again["compression"] == 42 / 8
    assert again["connected"] is True
    assert again["layers"][0]["name"] == "0.weight"
    assert len(again["steps"]) == 3
    assert again["theorem_held"] is True


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({}, r"there are no masks to certify; make some with synflow\.prune"),
        ({"9.weight": torch.ones(2, 2).bool()}, r"masks name '9\.weight', which is no parameter of this Sequential"),
        ({"0.weight": torch.ones(2, 2).bool()}, r"0\.weight: the mask has shape \(2, 2\), the weight \(6, 4\)"),
        ({"0.weight": torch.ones(6, 4)}, r"0\.weight: a mask is a boolean tensor.* got torch\.float32"),
    ],
)
def test_masks_that_do_not_fit_are_refused(masks, message):
    model = mlp(4, 6, 3)
    with untouched(model), pytest.raises(synflow.SynflowError, match=message):
        synflow.certify(model, masks, X)


def test_masks_of_some_layers_certify_these():
    model = mlp(4, 6, 5, 3)
    masks = synflow.prune(model, X, compression=4, protect="4", steps=3)
    certificate = synflow.certify(model, masks, X)
    assert certificate.total == 54
    assert certificate.connected


@given(st.integers(0, 10**6))
def test_a_certificate_of_masks_from_elsewhere(seed):
    """Masks need not come from the library: whatever they are, kept and connected are told as they are."""
    model = mlp(4, 5, 3)
    generator = torch.Generator().manual_seed(seed)
    masks = {name: torch.rand(mask.shape, generator=generator) < 0.15 for name, mask in ones(model).items()}
    certificate = synflow.certify(model, masks, X)
    product = masks["2.weight"].double() @ masks["0.weight"].double()
    assert certificate.connected == bool(product.any())
    assert certificate.kept == kept(masks)


def test_masks_and_example_in_the_wrong_order():
    model = nn.Linear(3, 2)
    with pytest.raises(synflow.SynflowError, match=r"got tuple; the order is certify\(model, masks, example\)"):
        synflow.certify(model, (torch.ones(1, 3),), {"weight": torch.ones(2, 3, dtype=torch.bool)})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_proofs_do_not_mind_the_callers_mode(mode):
    model, example = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.ones(1, 4)
    masks = synflow.prune(model, example, compression=4)

    def proofs():
        return (
            synflow.certify(model, masks, example),
            synflow.conservation(model, example, masks).layers,
            synflow.max_compression(model, example),
            synflow.critical_compression(model, example, steps=3),
            synflow.critical_compression(model, example, steps=1),
            synflow.critical_compression(model, example, score="snip", data=[(torch.ones(2, 4), torch.tensor([0, 1]))]),
            synflow.report(model, masks, example).facts["Sequential"].layers,
        )

    plain = proofs()
    with mode():
        inside = proofs()
        assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
        assert not torch.is_grad_enabled()
        ready = synflow.for_inference(model, example)
    assert inside == plain
    assert torch.allclose(ready(example), model(example), atol=1e-6)


def test_proofs_of_a_model_made_in_inference_mode():
    with torch.inference_mode():
        model, example = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.ones(1, 4)
        masks = synflow.prune(model, example, compression=4)
        assert synflow.certify(model, masks, example).connected


class Spare(nn.Module):
    """A trunk, a branch beside it, and a layer that the forward pass never runs."""

    def __init__(self):
        super().__init__()
        self.stem, self.head, self.spare = nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(3, 3)
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.outer(self.inner(x)))


def text(certificate):
    """What a certificate says, in one line."""
    return " ".join(str(certificate).split())


def test_layers_are_alive_dead_given_up_or_never_run():
    model = Spare()
    masks = synflow.prune(model, X, density=20 / 45, score="balanced", steps=4)
    certificate = synflow.certify(model, masks, X)
    assert (certificate.dead_layers, certificate.given_up) == ((), ())
    assert certificate.never_run == ("spare.weight",)
    assert "4 of 4 have a weight on a path; never run by the forward pass, not counted: spare.weight" in text(
        certificate
    )
    with pytest.warns(UserWarning, match="3 weights are too few to keep all 4 layers alive"):
        masks = synflow.prune(model, X, density=3 / 45, score="balanced", steps=4)
    certificate = synflow.certify(model, masks, X)
    assert certificate.connected
    assert certificate.dead_layers == certificate.given_up == ("inner.weight", "outer.weight")
    assert "2 of 4 have a weight on a path; given up, as the count left no room: inner.weight" in text(certificate)
    assert certificate.as_dict()["dead_layers"] == ("inner.weight", "outer.weight")
    emptied = {name: mask.clone() for name, mask in masks.items()}
    emptied["stem.weight"][:] = False
    certificate = synflow.certify(model, emptied, X)
    assert set(certificate.dead_layers) == {"stem.weight", "inner.weight", "outer.weight", "head.weight"}


def test_a_model_that_writes_into_its_input_is_certified_and_the_example_stays():
    model = Function(
        lambda self, x: self.last(self.first(x.mul_(2)).relu()), first=nn.Linear(6, 8), last=nn.Linear(8, 3)
    )
    example = torch.ones(1, 6)
    masks = synflow.prune(model, example, compression=4)
    certificate = synflow.certify(model, masks, example)
    assert certificate.connected
    assert certificate.unit_residual < 1e-6
    synflow.compact(model, example, masks)
    assert torch.equal(example, torch.ones(1, 6))


def test_layers_that_run_but_that_a_selection_passes_over_are_told_from_those_that_never_run():
    class Selecting(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))
            self.unused = nn.Linear(4, 3)

        def forward(self, x):
            return torch.cat([part(x) for part in self.parts], 1).topk(2).values

    model, example = Selecting(), torch.ones(1, 4)
    masks = synflow.prune(model, example, compression=2)
    certificate = synflow.certify(model, masks, example)
    assert set(certificate.never_run) == {"parts.1.weight", "unused.weight"}
    said = " ".join(str(certificate).split())
    assert "never run by the forward pass, not counted: unused.weight; run, but no flow passes them" in said
    assert "(a selection takes none of it), not counted: parts.1.weight" in said
