"""Which parameters are prunable, under which name, and where they sit."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import synflow
from blocks import SelfAttention, TiedAutoencoder, TokenModel
from synflow import SynflowError, attach, prunable
from synflow.network.selection import slots


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.bilinear = nn.Linear(2, 3), nn.Bilinear(2, 2, 2)
        self.conv = nn.ModuleList(
            [nn.Conv1d(2, 2, 1), nn.Conv2d(2, 2, 1, groups=2), nn.Conv3d(2, 2, 1), nn.ConvTranspose2d(2, 2, 1)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm1d(2), nn.LayerNorm((2, 2)), nn.GroupNorm(1, 2)])
        self.embedding, self.bag = nn.Embedding(3, 2), nn.EmbeddingBag(3, 2)
        self.attention = nn.MultiheadAttention(2, 1)
        self.cross = nn.MultiheadAttention(2, 1, kdim=3, vdim=3, add_bias_kv=True)
        self.lstm, self.cell = nn.LSTM(2, 3, proj_size=2), nn.GRUCell(2, 2)
        self.free = nn.Parameter(torch.randn(2, 2))
        self.normed = parametrizations.weight_norm(nn.Linear(2, 2))


def test_the_default_takes_the_weights_of_layers_and_nothing_else():
    assert set(prunable(Everything())) == {
        "linear.weight", "bilinear.weight", "conv.0.weight", "conv.1.weight", "conv.2.weight", "conv.3.weight",
        "attention.in_proj_weight", "attention.out_proj.weight", "cross.q_proj_weight", "cross.k_proj_weight",
        "cross.v_proj_weight", "cross.out_proj.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.weight_hr_l0",
        "cell.weight_ih", "cell.weight_hh",
    }  # fmt: skip


def test_normed_weights():
    """A row of a weight-normed layer cannot be all zero, so it stays dense; spectral norm divides by one number."""
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2)), nn.utils.spectral_norm(nn.Linear(2, 2)))
    model.append(parametrizations.spectral_norm(nn.Linear(2, 2)))
    assert list(prunable(model)) == ["1.weight_orig", "2.parametrizations.weight.original"]
    with pytest.raises(SynflowError, match="belongs to a weight norm"):
        prunable(model, select="0")


def test_order_is_that_of_the_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Conv1d(2, 2, 1), nn.Linear(2, 2))
    assert list(prunable(model)) == ["0.weight", "1.weight", "2.weight"]
    assert list(prunable(model, select=["2", "0"])) == ["0.weight", "2.weight"]


def test_subclasses_of_layers_count():
    class Mine(nn.Linear):
        pass

    assert list(prunable(Mine(2, 2))) == ["weight"]


def test_frozen_weights_are_prunable_too():
    model = nn.Linear(2, 2).requires_grad_(False)
    assert list(prunable(model)) == ["weight"]


def test_transformers_conv1d_counts():
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    assert list(prunable(conv1d(3, 2))) == ["weight"]


def test_tied_tensors_count_once_and_those_tied_to_an_embedding_do_not():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Linear(3, 3), layer)
    model[1].weight = layer.weight
    assert list(prunable(model)) == ["0.weight"]
    assert [attribute for _, attribute in slots(model, ["0.weight"])["0.weight"]] == ["weight", "weight"]
    assert list(prunable(TiedAutoencoder())) == ["encoder.weight"]
    assert "head.weight" not in prunable(TokenModel())
    assert "tokens.weight" not in prunable(TokenModel())
    assert "tokens.weight" in prunable(TokenModel(), select="tokens")


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("0", ["0.weight"]),
        ("*.weight", ["0.weight", "1.0.weight", "1.1.weight", "2.weight"]),
        ("1", ["1.0.weight", "1.1.weight"]),
        ("1.*", ["1.0.weight", "1.1.weight"]),
        (["2", "1.1"], ["1.1.weight", "2.weight"]),
        ("[02]*", ["0.weight", "2.weight"]),
        ("2.bias", ["2.bias"]),  # what matches only vectors chooses these
        (["1.*.bias", "0"], ["0.weight", "1.0.bias", "1.1.bias"]),
        (lambda _, weight: weight.shape[0] == 4, ["0.weight", "0.bias", "1.1.weight", "1.1.bias"]),
    ],
)
def test_patterns_and_predicates(patterns, expected):
    model = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4)), nn.Linear(4, 2))
    assert list(prunable(model, select=patterns)) == expected


def test_protected_weights_are_left_out():
    model = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4)), nn.Linear(4, 2))
    assert list(prunable(model, protect="1")) == ["0.weight", "2.weight"]
    assert list(prunable(model, protect=["0.*", "2"])) == ["1.0.weight", "1.1.weight"]
    assert list(prunable(model, select="1", protect="1.0")) == ["1.1.weight"]
    assert list(prunable(model, select=lambda name, _: "weight" in name, protect="1")) == ["0.weight", "2.weight"]


@pytest.mark.parametrize("option", ["select", "protect"])
def test_a_pattern_that_matches_nothing_is_named(option):
    message = rf"{option}: the pattern 'fc\.\*' matches no parameter; names look like 0\.weight"
    with pytest.raises(SynflowError, match=message):
        prunable(nn.Sequential(nn.Linear(2, 2)), **{option: ["0", "fc.*"] if option == "select" else "fc.*"})


def test_nothing_to_prune():
    with pytest.raises(SynflowError, match=r"BatchNorm1d has nothing to prune: of 2 parameters none.*select="):
        prunable(nn.BatchNorm1d(2))
    with pytest.raises(SynflowError, match="nothing to prune"):
        prunable(nn.Linear(2, 2), protect="*")
    with pytest.raises(SynflowError, match="nothing to prune"):
        prunable(nn.ReLU())


def test_lazy_and_meta_weights_are_refused():
    with pytest.raises(SynflowError, match=r"0\.weight has no shape yet \(a lazy layer\); run the model once"):
        prunable(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(SynflowError, match=r"0\.weight has no shape yet"):
        prunable(nn.Sequential(nn.LazyLinear(3)), select="0")
    with pytest.raises(SynflowError, match=r"weight is on the meta device.*materialise"):
        prunable(nn.Linear(2, 3, device="meta"))


def test_empty_and_integer_parameters_are_skipped():
    model = nn.Sequential(nn.Linear(2, 0), nn.Linear(2, 2))
    model.register_parameter("codes", nn.Parameter(torch.zeros(2, 2, dtype=torch.int64), requires_grad=False))
    assert list(prunable(model)) == ["1.weight"]
    assert list(prunable(model, select=lambda *_: True)) == ["1.weight", "1.bias"]


def test_masked_models_are_prunable_under_their_own_names():
    model = nn.Sequential(nn.Linear(4, 3), SelfAttention(1, 3))
    names = list(prunable(model))
    attach(model, {name: torch.ones_like(p, dtype=torch.bool) for name, p in prunable(model).items()})
    assert list(prunable(model)) == names


OLD_NORMS = [nn.utils.weight_norm, nn.utils.spectral_norm]
NEW_NORMS = [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", OLD_NORMS + NEW_NORMS)
def test_normed_layers_never_give_nan(norm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3))
    example = torch.ones(1, 6)
    model(example)  # old norms keep a weight with a history, which `copy.deepcopy` refuses
    masks = synflow.prune(model, example, compression=4)
    assert ("weight" in norm.__name__) != any(name.startswith("2.") for name in masks)
    assert synflow.certify(model, masks, example).connected
    for network in (synflow.compact(model, example, masks), synflow.for_inference(model, example)):
        assert network(torch.randn(4, 6)).isfinite().all()
    synflow.attach(model, masks)
    assert model(torch.randn(4, 6)).isfinite().all()
    synflow.bake(model)
    assert model(torch.randn(4, 6)).isfinite().all()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [OLD_NORMS[0], NEW_NORMS[0]])
@pytest.mark.parametrize("cell", [False, True])
def test_selecting_what_a_weight_norm_divides_is_refused_with_the_way_out(norm, cell):
    inner = norm(nn.RNNCell(8, 8), "weight_hh") if cell else norm(nn.Linear(8, 8))
    model = nn.Sequential(nn.Linear(6, 8), inner, nn.Linear(8, 3))
    assert list(prunable(model)) == ["0.weight", *["1.weight_ih"] * cell, "2.weight"]
    with pytest.raises(SynflowError, match=r"weight norm.*remove_.*protect='1'"):
        prunable(model, select="*")
    assert list(prunable(model, select="*", protect="1")) == ["0.weight", "2.weight"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("norm", "name"), [(OLD_NORMS[1], "weight_orig"), (NEW_NORMS[1], "parametrizations.weight.original")]
)
def test_an_empty_mask_under_a_spectral_norm_is_refused(norm, name):
    layer = norm(nn.Linear(3, 3))
    with pytest.raises(SynflowError, match="divide zero by zero"):
        synflow.attach(layer, {name: torch.zeros(3, 3).bool()})


def test_a_compiled_model_is_pruned_like_the_model_itself():
    torch.manual_seed(0)
    model, example = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.ones(1, 6)
    compiled = torch.compile(model)
    masks = synflow.prune(model, example, compression=4)
    found = synflow.prune(compiled, example, compression=4)
    assert found.about == masks.about
    assert list(found) == list(masks) == list(prunable(compiled))
    assert all(torch.equal(found[name], masks[name]) for name in masks)
    assert synflow.certify(compiled, masks, example).connected
    small = synflow.compact(compiled, example, masks)
    assert not hasattr(small, "_orig_mod")
    assert torch.allclose(synflow.for_inference(small, example)(example), small(example), atol=1e-6)
    synflow.attach(compiled, found)
    assert all(torch.equal(mask, masks[name]) for name, mask in synflow.attached(model).items())


def test_sparse_weights_and_types_without_arithmetic_are_refused_with_the_way_out():
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].weight = nn.Parameter(torch.randn(3, 4).to_sparse())
    with pytest.raises(SynflowError, match=r"0\.weight is a sparse tensor.*to_dense"):
        prunable(model)
    model[0].weight = nn.Parameter(torch.randn(3, 4).to(torch.float8_e4m3fn))
    with pytest.raises(SynflowError, match=r"0\.weight has the type torch\.float8_e4m3fn.*torch\.bfloat16"):
        prunable(model)
