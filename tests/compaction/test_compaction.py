"""`compact` from outside: what it takes, what it gives, what it says."""

import copy
import pickle

import pytest
import torch
from torch import nn

import synflow.compaction.result
from compact_twins import outputs_equal, random_masks, sizes, train_twins, without
from synflow.compaction import Compaction, compact
from synflow.errors import SynflowError
from synflow.masks.attach import attach, attached, bake
from zoo import ZOO

X = torch.randn(2, 3)


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def test_masks_default_to_the_attached_ones_and_add_to_them():
    model = mlp()
    attach(model, {"2.weight": without(model, "2.weight", 1, [0])})
    assert sizes(compact(model, X)) == [(3, 3), (4, 3), (2, 4)]
    both = compact(model, X, {"4.weight": without(model, "4.weight", 1, [1, 2])})
    assert sizes(both) == [(3, 3), (2, 3), (2, 2)]
    more = compact(model, X, {"2.weight": without(model, "2.weight", 1, [1])})  # of the same weight: neither comes back
    assert sizes(more) == [(2, 3), (4, 2), (2, 4)]
    assert list(attached(model)) == ["2.weight"]
    with pytest.raises(SynflowError, match="no masks; attach them first, or pass masks="):
        compact(mlp(), X)


def test_bad_masks_are_refused_by_name():
    with pytest.raises(SynflowError, match=r"no parameter .*weigth"):
        compact(mlp(), X, {"0.weigth": torch.ones(4, 3, dtype=torch.bool)})
    with pytest.raises(SynflowError, match=r"0\.weight"):
        compact(mlp(), X, {"0.weight": torch.ones(3, 4, dtype=torch.bool)})
    with pytest.raises(SynflowError, match="must be a torch.nn.Module"):
        compact(lambda x: x, X, {})


def test_the_model_is_not_changed_and_shares_nothing():
    model = mlp().train()
    masks = random_masks(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = compact(model, X, masks)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.fill_(7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert small.training
    assert not attached(model)
    assert not any(hasattr(t, "_synflow_number") for t in (X, *model.parameters()))


def test_the_random_state_is_left_alone():
    model, state = nn.Sequential(mlp(), nn.Dropout(0.5)), torch.get_rng_state()
    compact(model, X, random_masks(model))
    assert torch.equal(torch.get_rng_state(), state)


def test_masks_of_surviving_weights_go_with_them():
    model = mlp()
    masks = random_masks(model, density=0.5, units=0.8)
    small = compact(model, X, masks)
    kept = small.compaction.kept
    for name, mask in attached(small).items():
        expected = masks[name]
        for dim, indices in kept.get(name, {}).items():
            expected = expected.index_select(dim, torch.tensor(indices))
        assert torch.equal(mask, expected)


def test_the_state_dict_is_plain_once_baked_and_the_model_can_be_copied_and_pickled():
    model = mlp()
    small = compact(model, X, random_masks(model))
    bake(small)
    assert list(small.state_dict()) == list(model.state_dict())
    assert [type(module) for module in small.modules()] == [type(module) for module in model.modules()]
    for twin in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert twin.compaction == small.compaction
        assert torch.equal(twin(X), small(X))


def test_dtype_device_memory_format_and_frozen_weights_stay():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3)).to(torch.bfloat16)
    model = model.to(memory_format=torch.channels_last)
    model[0].weight.requires_grad_(False)
    small = compact(model, torch.randn(2, 3, 6, 6), {"2.weight": without(model, "2.weight", 1, [0, 5])})
    assert small[0].weight.shape == (6, 3, 3, 3)
    assert small[0].weight.dtype == torch.bfloat16
    assert small[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert [p.requires_grad for p in small.parameters()] == [False, True, True, True]


def test_the_record_reads_well():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    masks = {"2.weight": without(model, "2.weight", 1, [0]), "4.weight": without(model, "4.weight", 1, [0, 3])}
    compaction = compact(model, X, masks).compaction
    assert isinstance(compaction, Compaction)
    assert compaction.kept == {"2.weight": {0: [1, 2]}, "2.bias": {0: [1, 2]}, "4.weight": {1: [1, 2]}}
    assert compaction.shapes == {"2.weight": (4, 4), "2.bias": (4,), "4.weight": (2, 4)}
    assert compaction.removed["4.weight"] == ((2, 2), (4, 2))
    assert compaction.parameters == (54, 40)
    assert str(compaction).splitlines() == [
        "54 parameters became 40 (1.4x fewer)",
        "  2.weight: 4 x 4 -> 2 x 4",
        "  4.weight: 2 x 4 -> 2 x 2",
        "  kept 1 dead unit (0.weight dimension 0, 0.bias dimension 0, 2.weight dimension 1): "
        "a layer norm takes its statistics over it",
        f"outputs equal to {compaction.difference:.0e} in eval and train mode",
    ]
    with pytest.raises(AttributeError):
        compaction.kept = {}
    with pytest.raises(SynflowError, match="does not come from synflow.compact"):
        synflow.compaction.result.compaction_of(model)


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_is_compacted_and_trains_the_same(name):
    sample = ZOO[name]()
    if name == "weight_norm":
        pytest.skip("a masked row has no direction, so the masked model is not finite")
    for seed, (density, units) in enumerate([(0.15, 1.0), (0.9, 0.6)]):
        masks = random_masks(sample.model, density, units, seed)
        small = compact(sample.model, sample.example, masks)
        assert small.compaction.difference <= 1e-10
        if "train" in small.compaction.modes:
            example = sample.data[0][0]
            train_twins(sample.model, small, masks, example, 2, "adamw" if seed else "sgd", tolerance=1e-8)


def test_a_model_that_fails_the_check_stays_as_it_is_and_a_note_says_why():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out, self.other = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(3, 5)
            self.last = nn.Linear(5, 2)

        def forward(self, x):
            hidden = self.b(self.a(x).relu() * self.a.out_features)
            return self.out(hidden) + self.last(self.other(x).relu())

    model = Net()
    masks = {"b.weight": without(model, "b.weight", 1, [1]), "last.weight": without(model, "last.weight", 1, [0])}
    small = compact(model, X, masks)
    assert sizes(small) == [(4, 3), (4, 4), (2, 4), (5, 3), (2, 5)]
    assert outputs_equal(model, small, masks, X) <= 1e-10
    (note,) = small.compaction.notes
    assert note.startswith("all units had to stay, since the model fails the check without: output 0 differs by")
    assert any("fails the check" in stay.reason and "a.weight dimension 0" in stay.where
               for stay in small.compaction.stayed)  # fmt: skip


def test_an_operation_without_a_rule_keeps_what_it_touches():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.second(torch.cummax(self.first(x), -1).values).relu())

    model = Odd()
    masks = {
        "second.weight": without(model, "second.weight", 1, [1]),
        "out.weight": without(model, "out.weight", 1, [2]),
    }
    small = compact(model, X, masks)
    assert sizes(small) == [(4, 3), (3, 4), (2, 3)]
    train_twins(model, small, masks, X)


def test_examples_may_be_tuples_dicts_and_large_batches():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x, scale=None):
            return self.out(self.first(x).relu() * scale)

    model, scale = Two(), torch.ones(50, 1)
    masks = {"out.weight": without(model, "out.weight", 1, [1])}
    x = torch.randn(50, 3)
    for example in ((x, scale), [x, scale], {"x": x, "scale": scale}):
        assert sizes(compact(model, example, masks)) == [(3, 3), (2, 3)]


def test_a_batch_of_one_is_enough_for_batch_norm():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    small = compact(model, X[:1], {"3.weight": without(model, "3.weight", 1, [1])})
    assert sizes(small) == [(3, 3), (2, 3)]
    assert small.compaction.modes == ("eval", "train")


def test_a_model_that_cannot_be_run_says_why():
    with pytest.raises(SynflowError, match=r"shape \(2, 5\): RuntimeError: mat1 and mat2 shapes cannot be multiplied"):
        compact(mlp(), torch.randn(2, 5), {})
