"""Bad input gets a clear error, says the way out, and leaves the model untouched."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import synflow
from checks import Function, mlp, untouched
from synflow.pruning.scores import traits_of

X = torch.zeros(1, 4)
DATA = [(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2]))]


def refuse(message, model=None, example=X, chained=None, **options):
    """`prune` and `iterate` refuse at once, with this message and with the model as it was."""
    model = mlp(4, 6, 5, 3, bias=True) if model is None else model
    options = {"compression": 2, **options}
    for call in (synflow.prune, synflow.iterate):
        with untouched(model) if isinstance(model, nn.Module) else pytest.MonkeyPatch.context():
            with pytest.raises(synflow.SynflowError, match=message) as caught:
                for _ in call(model, example, **options):
                    pass
            assert isinstance(caught.value, ValueError)
            assert chained is None or isinstance(caught.value.__cause__, chained)


@pytest.mark.parametrize("compression", [0.5, 0, -3, math.nan, math.inf, 0.999])
def test_compression_below_one(compression):
    refuse(r"compression must be at least 1 .*got", compression=compression)


def test_compression_above_the_number_of_weights():
    refuse(r"compression 1000 of 69 weights leaves none; the most that leaves a path is \d+", compression=1000)


@pytest.mark.parametrize("score", ["synflow", "magnitude", "random"])
def test_compression_above_the_largest_says_what_that_is(score):
    refuse(
        r"compression 34\.5 keeps 2 of 69 weights, but a path .*needs 3; the maximum compression is 23",
        compression=34.5, score=score,
    )  # fmt: skip


@pytest.mark.parametrize("density", [0, -0.1, 1.5, math.nan])
def test_density_out_of_range(density):
    refuse("density is the share of weights that stays, above 0 and at most 1", compression=None, density=density)


def test_neither_or_both():
    refuse(r"give either compression=\.\.\. .*or density=", compression=None)
    refuse(r"give either compression=\.\.\. .*or density=", compression=2, density=0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("score", ["synflow", "magnitude", "snip"])
def test_weights_that_are_not_finite_are_named(value, score):
    model = mlp(4, 6, 5, 3)
    model[2].weight.data[1, 2] = value
    model[2].weight.data[0, 0] = value
    # torch.equal calls nan unequal to itself, so compare by hand.
    before = model[2].weight.detach().clone()
    with pytest.raises(synflow.SynflowError, match=r"2\.weight: 2 of 30 values are nan or inf"):
        synflow.prune(model, X, compression=2, score=score, data=DATA)
    assert torch.equal(model[2].weight.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize(
    ("where", "value", "error"),
    [
        ("0.bias", math.nan, r"0\.bias: 1 of 5 values are nan or inf"),
        ("1.weight", math.inf, r"1\.weight: 1 of 5 values are nan or inf"),
        ("1.running_var", math.nan, "flow became nan|flow of Sequential is nan"),
    ],
)
@pytest.mark.parametrize("function", [synflow.score, synflow.certify, partial(synflow.prune, compression=2)])
def test_other_numbers_that_are_not_finite_do_not_pass_silently(where, value, error, function):
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    masks = synflow.prune(model, X, compression=2)
    model.state_dict()[where][0] = value
    with pytest.raises(synflow.SynflowError, match=error):
        function(model, masks, X) if function is synflow.certify else function(model, X)


def test_a_parameter_that_blocks_positions_by_minus_infinity_is_no_error():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocked = nn.Parameter(torch.tensor([0.0, 0.0, 0.0, -math.inf]), requires_grad=False)
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(torch.softmax(x + self.blocked, -1))

    assert (synflow.score(Masked(), X)["layer.weight"][:, 3] == 0).all()


def test_an_example_on_the_meta_device_and_numbers_beyond_floats_are_refused():
    refuse(
        "a tensor on the meta device has no values; make the example on cpu", example=torch.ones(1, 4, device="meta")
    )
    refuse("compression must be at least 1", compression=10**400)


def test_a_model_with_nothing_to_prune():
    refuse("BatchNorm1d has nothing to prune: of 2 parameters none is the weight", nn.BatchNorm1d(4))
    refuse("Identity has nothing to prune", nn.Identity())
    refuse(r"nothing to prune.*all are protected.*select", protect="*")


def test_something_that_is_no_model():
    refuse(r"model must be a torch\.nn\.Module, got function", model=lambda x: x)


@pytest.mark.parametrize("score", ["synflow", "synflow_l2"])
def test_an_example_that_does_not_fit_gives_the_models_own_error(score):
    refuse(
        r"Sequential fails on an example of shape \(1, 7\): RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        example=torch.zeros(1, 7), chained=RuntimeError, score=score,
    )  # fmt: skip
    refuse("Sequential fails on an example of shape .*TypeError", example=(X, X), chained=TypeError, score=score)
    refuse("Sequential fails on an example", example={"y": X}, chained=TypeError, score=score)


def test_an_error_inside_the_model_is_chained():
    def forward(*_):
        raise KeyError("lost")

    refuse(
        r"Function fails on an example .*KeyError: 'lost'", Function(forward, layer=nn.Linear(4, 3)), chained=KeyError
    )


@pytest.mark.parametrize("score", [name for name, score in synflow.SCORES.items() if traits_of(score).needs_data])
def test_data_missing(score):
    refuse(rf"score '{score}' needs data; pass data=\[\(inputs, targets\), \.\.\.\].*data-free score", score=score)


def test_data_empty():
    refuse("data is empty", score="snip", data=[])
    spent = iter(DATA)
    next(spent)
    refuse(r"data is empty \(an exhausted iterator\?\)", score="snip", data=spent)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(4), "batch 0 is a Tensor of 4, expected a pair"),
        ((1, 2, 3), "batch 0 is a tuple of 3, expected a pair"),
        (7, "batch 0 is a int, expected a pair"),
    ],
)
def test_data_of_the_wrong_form(batch, message):
    refuse(message, score="snip", data=[batch])


def test_data_with_a_loss_that_is_not_finite():
    bad = [(torch.full((2, 4), math.inf), torch.tensor([0, 1]))]
    refuse("the loss is nan on batch 0 of 1; check that the data is finite", score="snip", data=bad)
    refuse("the loss is nan on batch 1 of 2", score="grasp", data=DATA + bad)
    refuse("the loss is inf on batch 0 of 1", score="snip", data=DATA, loss=lambda o, _: o.square().sum() * math.inf)


def test_unknown_names_list_the_choices():
    refuse("no score 'synflo'; choose from balanced, force, grasp, .*synflow_l2, taylor_fo", score="synflo")
    refuse("no schedule 'cosine'; choose from certified, exponential, linear, linear_density", schedule="cosine")
    refuse("no scope 'local'; choose from er, erk, global, igq, layer, smart, uniform", scope="local")
    refuse("no score 3; choose from", score=3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (dict(compression="10"), "compression must be a number, got '10'|compression must be at least 1"),
        (dict(compression=[10]), "compression must be"),
        (dict(compression=None, density="0.1"), "density"),
        (dict(select=5), r"select takes a pattern of names or a list of them, or a function .*got 5$"),
        (dict(protect=[nn.Linear]), "protect takes a pattern of names or a list of them, got"),
        (dict(seed="a"), "seed must be a whole number, got 'a'"),
        (dict(seed=True), "seed must be a whole number, got True"),
        (dict(seed=2**63), "seed must fit into 64 bits, got 9223372036854775808"),
        (dict(guard="yes"), "guard must be True, False or None"),
        (dict(loss=5), "loss must be a function"),
        (dict(data=5), "data must be batches"),
        (dict(masks=5), "masks must be a dict of boolean tensors"),
        (dict(engine="turbo"), "no engine 'turbo'"),
    ],
)  # fmt: skip
def test_settings_of_the_wrong_kind(setting, message):
    refuse(message, **setting)


@pytest.mark.parametrize(
    "wrong",
    [5, "x", [torch.ones(2)], nn.Linear(2, 2), torch.ones(2)],
    ids=["int", "str", "list", "module", "tensor"],
)
@pytest.mark.parametrize(
    "call",
    [
        synflow.density,
        synflow.shuffle,
        lambda wrong: synflow.attach(mlp(4, 3), wrong),
        lambda wrong: synflow.certify(mlp(4, 3), wrong, X),
        lambda wrong: synflow.report(mlp(4, 3), wrong, X),
        lambda wrong: synflow.compact(mlp(4, 3), X, wrong),
        lambda wrong: synflow.save_masks(wrong, "nowhere"),
        lambda wrong: synflow.load_masks(wrong),
        lambda wrong: synflow.rewind(mlp(4, 3), wrong),
        lambda wrong: synflow.register_rule([wrong], lambda *_: 1),
        lambda wrong: synflow.conservation(mlp(4, 3), X, wrong),
        lambda wrong: synflow.prune(mlp(4, 3), X, compression=2, engine=[wrong]),
        lambda wrong: synflow.prune(mlp(4, 3), X, compression=2, score=lambda *_: wrong),
        lambda wrong: synflow.prune(mlp(4, 3), X, compression=2, score="magnitude", scope=lambda *_: wrong),
        lambda wrong: synflow.score(mlp(4, 3), X, "snip", data=[(X, X)], loss=[wrong]),
        lambda wrong: synflow.score(mlp(4, 3), X, "snip", data=7),
        lambda wrong: synflow.critical_compression(mlp(4, 3), X, seed=[wrong]),
        lambda wrong: synflow.save_masks({}, [wrong]),
        lambda wrong: synflow.load_compact(mlp(4, 3), [wrong]),
        lambda wrong: synflow.bench(mlp(4, 3), {}, X, repeats=[wrong]),
        lambda wrong: synflow.bench(mlp(4, 3), {}, X, threads=[wrong]),
        lambda wrong: synflow.bench(mlp(4, 3), {}, X, train_batches=[[wrong]]),
        lambda wrong: synflow.bench(mlp(4, 3), {}, X, loss=[wrong]),
        lambda wrong: synflow.unmasked([wrong]).__enter__(),
    ],
    ids="""
        density shuffle attach certify report compact save_masks load_masks rewind register_rule conservation engine
        own-score own-scope loss data seed path folder repeats threads batches loss-of-bench unmasked
    """.split(),
)
def test_arguments_of_the_wrong_kind_get_an_error_of_ours(call, wrong):
    if call is synflow.density and isinstance(wrong, nn.Module):
        pytest.skip("a model has a density if masks are attached")
    with pytest.raises(synflow.SynflowError):
        call(wrong)


def test_a_compiled_model_or_part_is_pruned_as_it_was():
    part, example = mlp(4, 6, 5), torch.ones(1, 4)
    whole = nn.Sequential(torch.compile(part), nn.Linear(5, 3))
    plain = synflow.prune(nn.Sequential(part, whole[1]), example, compression=3)
    found = synflow.prune(whole, example, compression=3)
    assert [torch.equal(a, b) for a, b in zip(found.values(), plain.values(), strict=True)] == [True] * 3
    assert list(synflow.prune(torch.compile(part), example, compression=2)) == ["0.weight", "2.weight"]


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)),
        (nn.Linear(4, 6), nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.PReLU(), nn.Linear(6, 3)),
    ],
)
def test_the_parameters_of_norms_can_be_selected(layers):
    model = nn.Sequential(*layers)
    masks = synflow.prune(model, X, density=0.5, select=lambda *_: True)
    assert set(masks) == {name for name, _ in model.named_parameters()}
    assert synflow.certify(model, masks, X).connected


def test_a_score_put_into_the_table_needs_no_data():
    synflow.SCORES["mine"] = lambda network, masks: {name: weight.abs() for name, weight in network.weights.items()}
    try:
        masks = synflow.prune(mlp(4, 6, 3), X, compression=2, score="mine")
    finally:
        del synflow.SCORES["mine"]
    assert sum(int(mask.sum()) for mask in masks.values()) == 21


def test_numbers_of_numpy_are_numbers():
    options = dict(compression=np.float32(4), steps=np.int64(3), margin=np.float16(0.5), seed=np.int32(7))
    masks = synflow.prune(mlp(4, 6, 3), X, **options)
    assert masks.about["steps"] == 3
    assert masks.about["seed"] == 7
    assert json.loads(json.dumps(masks.about)) == masks.about


@pytest.mark.parametrize("steps", [0, -1, 1.5, "10"])
def test_steps_that_are_no_count(steps):
    refuse("steps must be a whole number of at least 1, got", steps=steps)


@pytest.mark.parametrize("margin", [0, 1, -0.5, 2, math.nan])
def test_margins_out_of_range(margin):
    refuse("margin must lie between 0 and 1, got", margin=margin)


def test_meta_tensors():
    with pytest.raises(synflow.SynflowError, match=r"weight is on the meta device and has no values; materialise"):
        synflow.prune(nn.Linear(4, 3, device="meta"), X, compression=2)


def test_lazy_layers():
    with pytest.raises(synflow.SynflowError, match=r"weight has no shape yet \(a lazy layer\); run the model once"):
        synflow.prune(nn.LazyLinear(3), X, compression=2)


def test_patterns_that_match_nothing():
    refuse(r"select: the pattern 'encoder\.\*' matches no parameter; names look like 0\.weight", select="encoder.*")
    refuse(r"protect: the pattern 'head' matches no parameter", protect=["4", "head"])


def test_masks_that_do_not_match():
    refuse(r"masks name '1\.weight', which is not among the prunable", masks={"1.weight": torch.ones(5, 6).bool()})
    refuse(r"2\.weight: the mask has shape \(6, 5\), the weight \(5, 6\)", masks={"2.weight": torch.ones(6, 5).bool()})
    refuse(r"2\.weight: a mask is a boolean tensor.* got torch\.float32", masks={"2.weight": torch.ones(5, 6)})
    few = {name: torch.zeros(shape).bool() for name, shape in (("0.weight", (6, 4)), ("2.weight", (5, 6)))}
    refuse(r"34 of 69 weights are to stay but the given masks keep only 15.*at least 4\.6", masks=few)


def test_masks_without_a_path():
    apart = {"0.weight": torch.zeros(6, 4).bool(), "2.weight": torch.zeros(5, 6).bool()}
    apart["0.weight"][0], apart["2.weight"][:, 1] = True, True
    refuse("no path leads from an input to an output under the given masks", masks=apart, compression=10)


def test_a_model_without_a_path():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("gate", torch.zeros(3))

        def forward(self, x):
            return self.layer(x) * self.gate

    refuse("no path leads from an input to an output; check the model and the example", Cut())
    with pytest.raises(synflow.SynflowError, match="no path leads from an input to an output"):
        synflow.max_compression(Cut(), X)


def test_the_other_doors_refuse_as_well():
    model = mlp(4, 6, 3)
    model[0].weight.data[0, 0] = math.nan
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters()}
    for call in (
        lambda: synflow.score(model, X),
        lambda: synflow.max_compression(model, X),
        lambda: synflow.critical_compression(model, X),
        lambda: synflow.conservation(model, X),
        lambda: synflow.certify(model, masks, X),
    ):
        with pytest.raises(synflow.SynflowError, match=r"0\.weight: 1 of 24 values are nan or inf"):
            call()
    with pytest.raises(synflow.SynflowError, match="no score 'synflo'; choose from"):
        synflow.score(mlp(4, 3), X, "synflo")
