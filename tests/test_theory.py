"""Conservation, maximum and critical compression."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from blocks import residual
from checks import kept

X = torch.zeros(1, 4)


def chain(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6, bias), nn.ReLU(), nn.Linear(6, 5, bias), nn.ReLU(), nn.Linear(5, 3, bias))


def test_inflow_is_outflow_at_every_unit_and_every_cut_carries_the_flow():
    conserved = synflow.conservation(chain().double(), X.double())
    assert conserved.cuts == ("0.weight", "2.weight", "4.weight")
    assert conserved.layer_residual < 1e-12
    assert conserved.unit_residual < 1e-12
    assert sorted(conserved.units) == ["0.weight", "2.weight", "4.weight"]
    inflow, _ = conserved.units["2.weight"]
    assert inflow.shape == (5,)
    assert float(inflow.sum()) == pytest.approx(1)


def test_units_of_convolutions_of_any_kind():
    convolutions = nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 6, 2, groups=2)
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(54, 3)).double()
    conserved = synflow.conservation(model, torch.zeros(1, 2, 6, 6, dtype=torch.float64))
    assert {name: len(inflow) for name, (inflow, _) in conserved.units.items()} == {
        "0.weight": 4,
        "3.weight": 6,
        "5.weight": 3,
    }
    assert conserved.unit_residual < 1e-12


def test_a_branch_is_no_cut():
    model = nn.Sequential(nn.Linear(4, 4), residual(nn.Linear(4, 4), nn.Identity()), nn.Linear(4, 2)).double()
    conserved = synflow.conservation(model, X.double())
    assert conserved.cuts == ("0.weight", "2.weight")
    branch = next(name for name in conserved.layers if name not in conserved.cuts)
    assert 0 < conserved.layers[branch] < 1


def test_the_same_laws_hold_for_the_saliency_of_a_loss():
    """Theorem 1 and 2 for dL/dw * w, biases counted in, on a network of ReLUs."""
    torch.manual_seed(1)
    model = chain().double()
    inputs, targets = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,))
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def objective(values):
        return F.cross_entropy(torch.func.functional_call(model, values, (inputs,)), targets)

    scores = synflow.saliency(objective, weights)
    for first, second in (("0", "2"), ("2", "4")):
        inflow = scores[f"{first}.weight"].sum(1) + scores[f"{first}.bias"]
        outflow = scores[f"{second}.weight"].sum(0)
        torch.testing.assert_close(inflow, outflow)


def test_max_compression_of_a_chain_is_n_over_l():
    assert synflow.max_compression(chain(), X) == (24 + 30 + 15) / 3
    assert synflow.max_compression(chain(), X, protect="4") == 54 / 2


def test_max_compression_with_skips_counts_the_path_with_the_fewest_weights():
    model = nn.Sequential(nn.Linear(4, 4), residual(nn.Linear(4, 4), nn.Identity()), nn.Linear(4, 2))
    assert synflow.max_compression(model, X) == 40 / 2
    assert synflow.max_compression(nn.Sequential(residual(nn.Linear(4, 4), nn.Identity())), X) == math.inf


@pytest.mark.parametrize("score", ["magnitude", "random", "snip", "synflow"])
@pytest.mark.parametrize("collapse", ["disconnected", "empty_layer"])
def test_critical_compression_is_where_a_scan_finds_it(score, collapse):
    torch.manual_seed(2)
    model = chain(bias=False)
    data = [(torch.randn(8, 4), torch.randint(0, 3, (8,)))]
    found = synflow.critical_compression(model, X, score=score, steps=1, data=data, collapse=collapse, seed=4)
    size, alive = 69, []
    for keep in range(3, size + 1):
        masks = synflow.prune(model, X, density=keep / size, score=score, steps=1, data=data, guard=False, seed=4)
        assert kept(masks) == keep
        certificate = synflow.certify(model, masks, X)
        alive.append(certificate.connected if collapse == "disconnected" else not certificate.empty_layers)
    assert found == pytest.approx(size / (3 + alive.index(True)))
    assert all(alive[alive.index(True) :])


def test_iterative_synflow_reaches_further_than_magnitude():
    torch.manual_seed(5)
    model = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(8, 8, bias=False), nn.ReLU())))
    magnitude = synflow.critical_compression(model, torch.zeros(1, 8), score="magnitude")
    flow = synflow.critical_compression(model, torch.zeros(1, 8), score="synflow", steps=20)
    assert magnitude < flow <= synflow.max_compression(model, torch.zeros(1, 8))


def test_unknown_collapse():
    with pytest.raises(synflow.SynflowError, match="no collapse 'layer'; choose from disconnected, empty_layer"):
        synflow.critical_compression(chain(), X, collapse="layer")
