"""Bad input gets a clear sentence that names the way out, and leaves the model as it was."""

import pytest
import torch
from torch import nn

import synflow
from checks import untouched
from synflow import SynflowError

X = torch.zeros(1, 4)


def chain() -> nn.Sequential:
    """40 weights, at most 20x."""
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))


def refuse(match: str, model: nn.Module | None = None, example: object = X, **options: object) -> None:
    model = chain() if model is None else model
    options = {"compression": 2, **options}
    with untouched(model), pytest.raises(SynflowError, match=match):
        synflow.prune(model, example, **options)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        (r"compression must be at least 1 .* got 0\.5", {"compression": 0.5}),
        (r"compression must be at least 1 .* got nan", {"compression": float("nan")}),
        (r"compression must be at least 1 .* got inf", {"compression": float("inf")}),
        (r"compression 1000 of 40 weights leaves none; the most is 40x", {"compression": 1000}),
        (r"keeps 1 of 40 weights, but a path .* needs 2; the maximum compression is 20", {"compression": 40}),
        (r"maximum compression is 20", {"compression": 40, "score": "magnitude"}),
        (r"density is the share of weights that stays.* got 0", {"compression": None, "density": 0}),
        (r"density is the share of weights that stays.* got 1\.5", {"compression": None, "density": 1.5}),
        (r"either compression=.* or density=", {"density": 0.5}),
        (r"either compression=.* or density=", {"compression": None}),
        (r"no score 'synflo'; choose from force, grasp, .*, taylor_fo, or pass a callable", {"score": "synflo"}),
        (r"no schedule 'cosine'; choose from certified, exponential, linear, linear_density", {"schedule": "cosine"}),
        (r"no scope 'local'; choose from erk, global, layer, uniform", {"scope": "local"}),
        (r"steps must be a whole number of at least 1, got 0", {"steps": 0}),
        (r"steps must be a whole number of at least 1, got 2\.5", {"steps": 2.5}),
        (r"margin must lie between 0 and 1, got 1", {"margin": 1}),
        (r"certified schedule .* needs score='synflow'", {"schedule": "certified", "score": "magnitude"}),
        (r"select: the pattern 'conv\*' matches no parameter; names look like 0\.weight", {"select": "conv*"}),
        (r"protect: the pattern 'head' matches no parameter", {"protect": ["head"]}),
        (r"Sequential has nothing to prune: .* name some with select", {"protect": ["0", "2"]}),
        (r"score 'snip' needs data; pass data=\[\(inputs, targets\), \.\.\.\]", {"score": "snip"}),
        (r"score 'grasp' needs data", {"score": "grasp"}),
        (r"data is empty", {"score": "snip", "data": []}),
        (r"data: batch 0 is a Tensor of 3, expected a pair", {"score": "snip", "data": [torch.zeros(3, 4)]}),
        (r"masks name '7\.weight', which is not among the prunable weights \(0\.weight", {"masks": {"7.weight": X}}),
    ],
)
def test_settings(match, options):
    refuse(match, **options)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_named(value):
    model = chain()
    with torch.no_grad():
        model[2].weight[1, 2] = value
    with pytest.raises(SynflowError, match=r"2\.weight: 1 of 20 weights are nan or inf; initialise the model again"):
        synflow.prune(model, X, compression=2)


def test_a_model_with_nothing_to_prune():
    refuse("ReLU has nothing to prune: of 0 parameters none is the weight of a linear", nn.ReLU())


def test_not_a_model():
    with pytest.raises(SynflowError, match="model must be a torch.nn.Module, got function"):
        synflow.prune(lambda x: x, X, compression=2)


def test_meta_tensors_and_lazy_layers():
    with pytest.raises(SynflowError, match="0.weight is on the meta device and has no values; materialise"):
        synflow.prune(chain().to("meta"), X, compression=2)
    with pytest.raises(SynflowError, match="0.weight has no shape yet .*run the model once, then prune"):
        synflow.prune(nn.Sequential(nn.LazyLinear(3)), X, compression=2)


def test_an_example_that_does_not_fit_shows_the_models_own_error():
    model = chain()
    with untouched(model), pytest.raises(SynflowError, match=r"Sequential fails on an example of shape \(1, 3\)") as e:
        synflow.prune(model, torch.zeros(1, 3), compression=2)
    assert isinstance(e.value.__cause__, RuntimeError)
    assert "mat1 and mat2" in str(e.value.__cause__)


@pytest.mark.parametrize("score", ["snip", "grasp", "obd", "force"])
def test_a_loss_that_is_not_finite(score):
    data = [(torch.zeros(2, 4), torch.tensor([0, 1])), (torch.full((2, 4), float("nan")), torch.tensor([0, 1]))]
    refuse(r"the loss is nan on batch 1 of 2; check that the data is finite", score=score, data=data)


def test_masks_that_do_not_match():
    wrong = {"0.weight": torch.ones(4, 5, dtype=torch.bool)}
    refuse(r"0\.weight: mask of shape \(4, 5\), expected \(5, 4\)", masks=wrong)
    refuse(r"0\.weight: mask of type torch.float32, expected torch.bool", masks={"0.weight": torch.ones(5, 4)})
    few = {"0.weight": torch.eye(5, 4, dtype=torch.bool), "2.weight": torch.eye(4, 5, dtype=torch.bool)}
    refuse(r"20 of 40 weights are to stay but the given masks keep only 8; .* at least 5", masks=few)
    with pytest.raises(SynflowError, match="masks name 'x', which is no parameter of this Sequential"):
        synflow.certify(chain(), {"x": X}, X)


def test_masks_without_a_path():
    masks = {"0.weight": torch.zeros(5, 4, dtype=torch.bool)}
    masks["0.weight"][0] = True
    masks["2.weight"] = torch.ones(4, 5, dtype=torch.bool)
    masks["2.weight"][:, 0] = False
    refuse("no path leads from an input to an output under the given masks", masks=masks, compression=4)


def test_scores_and_scopes_of_the_users_own_are_checked():
    refuse("the score must return one tensor per prunable weight", score=lambda network, masks: {"0.weight": X})
    refuse(
        r"0\.weight: scores have shape \(1,\), expected \(5, 4\)",
        score=lambda network, masks: {name: torch.zeros(1) for name in network.weights},
    )
    refuse(
        r"0\.weight: 20 of 20 scores are nan; no ranking is possible",
        score=lambda network, masks: {name: w * float("nan") for name, w in network.weights.items()},
    )
    refuse("the scope kept 40 weights where 20 were asked for", score="magnitude", scope=lambda s, masks, keep: masks)


def test_data_free_scores_never_touch_the_data():
    class Trap:
        def __iter__(self):
            raise AssertionError("the data was read")

    for score in ("synflow", "synflow_l2", "magnitude", "random"):
        synflow.prune(chain(), X, compression=2, score=score, data=Trap())
