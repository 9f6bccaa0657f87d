"""The certificate tells the truth of any masks, whoever made them."""

import json
import math

import pytest
import torch
from torch import nn

import synflow
from blocks import residual
from reference import mlp_terms, path_weights

X = torch.zeros(1, 4)


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def full(model):
    return {name: torch.ones_like(p, dtype=torch.bool) for name, p in synflow.prunable(model).items()}


def test_masks_of_prune_bring_their_steps():
    model = chain()
    certificate = synflow.certify(model, synflow.prune(model, X, compression=5, steps=4), X)
    assert (certificate.kept, certificate.total, certificate.compression) == (7, 35, 5)
    assert certificate.connected
    assert certificate.max_compression == 17.5
    assert [step.index for step in certificate.steps] == [1, 2, 3, 4]
    assert certificate.steps[-1].kept == 7
    assert certificate.theorem_held is True
    assert certificate.flow_log2 < certificate.flow_log2_before
    assert certificate.cuts == ("0.weight", "2.weight")
    assert certificate.layer_residual < 1e-6
    assert certificate.unit_residual < 1e-6


def test_plain_masks_have_no_steps():
    certificate = synflow.certify(chain(), full(chain()), X)
    assert certificate.steps == ()
    assert certificate.theorem_held is None
    assert "not recorded" in str(certificate)


def test_biases_alone_do_not_connect():
    """Each layer has weights and every bias carries flow, but no input reaches an output."""
    model, masks = chain(), full(chain())
    masks["0.weight"][1:] = False
    masks["2.weight"][:, 0] = False
    certificate = synflow.certify(model, masks, X)
    assert not certificate.connected
    assert certificate.empty_layers == ()
    assert certificate.idle == certificate.kept == 4 + 12
    assert certificate.flow_log2 == -math.inf
    assert math.isinf(certificate.effective_compression)
    assert "NO: no path" in str(certificate)


def test_an_empty_shortcut_is_empty_but_connected():
    model = residual(nn.Linear(4, 4), nn.Linear(4, 4))
    masks = full(model)
    empty = list(masks)[-1]
    masks[empty].zero_()
    certificate = synflow.certify(model, masks, X)
    assert certificate.connected
    assert certificate.empty_layers == (empty,)


def test_idle_weights_are_those_on_no_path():
    layers = [nn.Linear(a, b, bias=False) for a, b in ((4, 5), (5, 4), (4, 2))]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    disconnected = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        masks = {n: torch.rand(p.shape, generator=generator) < 0.2 for n, p in synflow.prunable(model).items()}
        terms = mlp_terms({n: mask.double().numpy() for n, mask in masks.items()})
        alive = [(c, path) for c, path in terms if all(bool(masks[n].flatten()[i]) for n, i in path)]
        certificate = synflow.certify(model, masks, X)
        assert certificate.kept - certificate.idle == len(path_weights(alive))
        assert certificate.connected == bool(alive)
        disconnected += not alive
    assert 0 < disconnected < 20


def test_switched_off_gains_are_noted():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    nn.init.zeros_(model[1].weight)
    certificate = synflow.certify(model, full(model), X)
    assert certificate.notes == ("module '1' (BatchNorm1d): a gain that is zero everywhere counts as one",)
    assert certificate.connected


@pytest.mark.parametrize("compression", [1, 3, 17.5])
def test_text_and_dict(compression):
    model = chain()
    certificate = synflow.certify(model, synflow.prune(model, X, compression=compression), X)
    assert max(len(line) for line in str(certificate).splitlines()) <= 100
    assert json.loads(json.dumps(certificate.as_dict()))["kept"] == certificate.kept


def test_rows_add_up():
    model = chain()
    certificate = synflow.certify(model, synflow.prune(model, X, compression=4), X)
    assert sum(row.kept for row in certificate.layers) == certificate.kept
    assert sum(row.on_path for row in certificate.layers) == certificate.kept - certificate.idle
    assert [row.shape for row in certificate.layers] == [(5, 4), (3, 5)]
