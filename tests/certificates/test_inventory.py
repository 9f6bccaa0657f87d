"""The certificate says of every parameter what became of it, and its counts add up."""

import pytest
import torch
from torch import nn

import synflow
from zoo import ZOO


class Odd(nn.Module):
    """Layers that pruning leaves alone, each for another reason, and a head that only training runs."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.kept = nn.Linear(8, 8)
        self.mix = nn.Parameter(torch.randn(8, 8))
        self.unused = nn.Parameter(torch.randn(5, 5))
        self.head = nn.Linear(8, 3)
        self.auxiliary = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.kept(torch.relu(self.normed(torch.relu(self.first(x))))))
        x = torch.einsum("bi,ij->bj", x, self.mix)
        return (self.head(x), self.auxiliary(x)) if self.training else self.head(x)


@pytest.fixture(scope="module")
def certificate():
    torch.manual_seed(0)
    model, example = Odd(), torch.ones(1, 6)
    masks = synflow.prune(model, example, compression=3, protect="kept")
    return synflow.certify(model, masks, example)


def test_each_parameter_has_a_fate_and_the_counts_add_up(certificate):
    model = Odd()
    assert sum(part.numel for part in certificate.parameters) == sum(p.numel() for p in model.parameters())
    names = [name for part in certificate.parameters for name in part.names]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    fates = {name: part.fate for part in certificate.parameters for name in part.names}
    assert fates["first.weight"] == fates["head.weight"] == "pruned"
    assert fates["kept.weight"] == "not selected or protected"
    assert fates["normed.parametrizations.weight.original1"] == "under a weight norm"
    assert fates["first.bias"] == "biases, norms and other vectors"
    assert fates["mix"].startswith("parameters of no known layer")
    assert fates["unused"] == fates["auxiliary.weight"] == fates["auxiliary.bias"] == "never run"


def test_the_text_shows_the_block_and_warns_of_heads_that_only_training_runs(certificate):
    text = " ".join(str(certificate).split())
    assert (
        "parameters 351 in all: pruned 72 (first.weight, head.weight); never run 52 (unused, auxiliary.weight" in text
    )
    assert "under a weight norm 72" in text
    assert "does not run auxiliary.weight" in text
    assert "protect=[...]" in text
    assert certificate.as_dict()["parameters"][0]["fate"] == "pruned"


def test_emptied_layers_are_told_apart():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    masks = {"0.weight": torch.zeros(4, 4).bool(), "1.weight": torch.ones(2, 4).bool()}
    certificate = synflow.certify(model, masks, torch.ones(1, 4))
    assert [(part.fate, part.names) for part in certificate.parameters][:2] == [
        ("pruned", ("1.weight",)), ("emptied", ("0.weight",)),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["vgg_like", "encoder_layer", "lstm", "tied_autoencoder", "repeated_module"])
def test_ordinary_models_run_all_their_weights(name):
    sample = ZOO[name]()
    torch.manual_seed(0)
    model, example = sample.model, sample.example
    masks = synflow.prune(model, example, compression=2, steps=2)
    found = synflow.certify(model, masks, example)
    assert sum(part.numel for part in found.parameters) == sum(p.numel() for p in model.parameters())
    assert not any(part.fate == "never run" for part in found.parameters)
    synflow.attach(model, masks)
    assert synflow.certify(model, masks, example).parameters == found.parameters
