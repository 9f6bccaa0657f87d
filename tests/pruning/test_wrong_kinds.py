"""Arguments of the wrong kind, all over the library: each is refused by an error of ours or works; none fails raw."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from checks import mlp, untouched

MODEL, X = mlp(4, 6, 3, bias=True), torch.ones(2, 4)
DATA = [(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0]))]
MASKS = synflow.prune(MODEL, X, compression=3, steps=2)
SMALL = synflow.compact(MODEL, X, MASKS)
WRONG = {
    "None": None, "True": True, "-1": -1, "0": 0, "1.5": 1.5, "nan": math.nan, "inf": math.inf, "huge": 10**30,
    "text": "x", "no text": "", "bytes": b"x", "list": [], "dict": {}, "tuple": (), "list of one": [1],
    "dict of int": {"a": 1}, "keys that are no text": {1: 2}, "vector": torch.ones(2), "scalar": torch.tensor(math.nan),
    "float64": np.float64(2), "array": np.array([1, 2]), "module": nn.Linear(2, 2), "class": nn.Linear, "type": type,
    "object": object(), "mask of floats": {"0.weight": torch.ones(6, 4)}, "mask of None": {"0.weight": None},
    "no batch": torch.ones(0, 4), "complex": torch.ones(2, 4, dtype=torch.complex64), "other width": torch.ones(2, 7),
    "function of one": lambda one: 1,
}  # fmt: skip
SETTINGS = dict(
    compression=3, score="snip", steps=2, schedule="linear", margin=0.5, guard=None, scope="global", data=DATA,
    loss=F.cross_entropy, select=None, protect=(), masks=None, seed=0, engine="fast", progress=False,
)  # fmt: skip
CALLS = {
    "prune": (synflow.prune, dict(model=MODEL, example=X, **SETTINGS)),
    "prune by flow": (synflow.prune, dict(model=MODEL, example=X, density=0.4, steps=2, guard=True, scope="erk")),
    "iterate": (lambda **given: list(synflow.iterate(**given)), dict(model=MODEL, example=X, compression=3, steps=2)),
    "score": (synflow.score, dict(model=MODEL, example=X, score="snip", data=DATA, masks=None, select=None, seed=0)),
    "prunable": (synflow.prunable, dict(model=MODEL, select=None, protect=())),
    "certify": (synflow.certify, dict(model=MODEL, masks=MASKS, example=X)),
    "limits": (synflow.limits, dict(model=MODEL, example=X, select=None, protect=())),
    "max_compression": (synflow.max_compression, dict(model=MODEL, example=X)),
    "critical_compression": (
        synflow.critical_compression,
        dict(model=MODEL, example=X, score="synflow", steps=1, schedule=None, scope="global", tolerance=0.5, data=DATA,
             collapse="disconnected"),
    ),
    "conservation": (synflow.conservation, dict(model=MODEL, example=X, masks=None)),
    "compact": (synflow.compact, dict(model=MODEL, example=X, masks=MASKS)),
    "expand": (synflow.expand, dict(small=SMALL, dense_model=MODEL)),
    "for_inference": (synflow.for_inference, dict(model=MODEL, example=X, channels_last=True, freeze=False)),
    "bench": (
        synflow.bench,
        dict(model=MODEL, masks=MASKS, example=X, train_batches=(2,), inference_batches=(1,), repeats=1, warmup=0,
             loss=None, threads=None, small=SMALL, progress=False),
    ),
    "density": (synflow.density, dict(masks=MASKS)),
    "shuffle": (synflow.shuffle, dict(masks=MASKS, seed=0)),
    "fingerprint": (synflow.fingerprint, dict(model=MODEL)),
    "saliency": (synflow.saliency, dict(objective=lambda w: sum(map(torch.sum, w.values())), weights={"a": X})),
    "report": (synflow.report, dict(model=MODEL, masks=MASKS, example=X, title="title")),
}  # fmt: skip
# An objective is the user's own code: what it raises is what they see. So is a module that takes what it is given.
OWN_CODE = {("saliency", "objective", "module")}


@pytest.mark.parametrize(("call", "argument"), [(call, name) for call, (_, good) in CALLS.items() for name in good])
def test_no_argument_fails_raw(call, argument):
    function, good = CALLS[call]
    with untouched(MODEL):
        for kind, value in WRONG.items():
            if (call, argument, kind) in OWN_CODE or (argument == "repeats" and kind == "huge"):
                continue
            try:
                function(**{**good, argument: value})
            except synflow.SynflowError as error:
                said = str(error)
            else:
                said = "it works"
            assert 5 < len(said) < 1000, kind


@pytest.mark.parametrize("call", ["prune", "prune by flow", "score", "critical_compression"])
@pytest.mark.parametrize(
    ("argument", "form"),
    [
        ("score", r"\(network, masks\) -> scores"),
        ("schedule", r"\(step, steps, density\) -> density"),
        ("scope", r"\(scores, candidates, keep\) -> masks"),
        ("loss", r"\(outputs, targets\) -> tensor"),
        ("select", r"\(name, parameter\) -> bool"),
    ],
)
def test_functions_of_another_form_are_named_with_what_is_allowed(call, argument, form):
    function, good = CALLS[call]
    if call == "score" and argument in ("schedule", "scope"):
        return
    for value, got in (
        (nn.Linear(2, 2), "Linear with other arguments"),
        (nn.Linear, "the class Linear itself"),
        (lambda: 0, "<lambda> with other arguments"),
    ):
        with pytest.raises(synflow.SynflowError, match=rf"^{argument} must be a function {form}, got {got}") as caught:
            function(**{**good, argument: value})
        if argument in ("score", "schedule", "scope"):
            assert "; choose from " in str(caught.value)


def test_modules_that_take_the_arguments_stand_for_functions():
    class Magnitude(nn.Module):
        def forward(self, network, masks):  # noqa: ARG002
            return {name: weight.abs() for name, weight in network.weights.items()}

    options = dict(compression=3, loss=nn.CrossEntropyLoss(), data=DATA)
    own = synflow.prune(MODEL, X, score=Magnitude(), **options)
    named = synflow.prune(MODEL, X, score="magnitude", **options)
    assert all(torch.equal(own[name], named[name]) for name in named)
