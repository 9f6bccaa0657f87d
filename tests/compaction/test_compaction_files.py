"""Compact networks on disk and back, and in dense shape again."""

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from blocks import SelfAttention
from compact_twins import random_masks, without
from synflow.compaction import compact, expand, load_compact, save_compact
from synflow.errors import SynflowError
from synflow.masks.attach import attach, attached, bake
from synflow.masks.files import load_masks
from zoo import ZOO

X = torch.randn(2, 3)


def mlp(width=6):
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


@pytest.fixture
def small():
    torch.manual_seed(1)
    model = mlp()
    return compact(model, X, random_masks(model, 0.6, 0.7))


@pytest.mark.parametrize(
    "name", ["grouped_depthwise", "multihead_attention", "einsum_attention", "gru", "tied_autoencoder", "token_model"]
)
def test_a_network_comes_back_from_a_fresh_dense_one(name, tmp_path):
    sample = ZOO[name]()
    masks = random_masks(sample.model, 0.9, 0.6)
    small = compact(sample.model, sample.example, masks)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.1)  # training
    save_compact(small, tmp_path / "small")
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == [
        "compaction.json", "manifest.json", "masks.safetensors", "weights.safetensors",
    ]  # fmt: skip
    fresh = ZOO[name]().model
    before = copy.deepcopy(fresh.state_dict())
    loaded = load_compact(fresh, tmp_path / "small")
    assert all(torch.equal(tensor, before[key]) for key, tensor in fresh.state_dict().items())
    assert loaded.compaction == small.compaction
    args = sample.example if isinstance(sample.example, tuple) else (sample.example,)
    with torch.no_grad():
        expected, got = small.eval()(*args), loaded.eval()(*args)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    ours, theirs = attached(loaded), attached(small)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_baked_network_has_no_masks_file_and_modes_are_kept(small, tmp_path):
    bake(small)
    small.eval()
    save_compact(small, tmp_path / "small")
    loaded = load_compact(mlp(), tmp_path / "small")
    assert not attached(loaded)
    assert not loaded.training
    names = sorted(path.name for path in (tmp_path / "small").iterdir())
    assert names == ["compaction.json", "manifest.json", "weights.safetensors"]
    record = json.loads((tmp_path / "small" / "compaction.json").read_text())
    assert record["model"] == "Sequential"
    assert record["compaction"]["kept"]["0.weight"] == {str(d): i for d, i in small.compaction.kept["0.weight"].items()}


def test_an_older_network_is_replaced_but_nothing_else(small, tmp_path):
    save_compact(small, tmp_path / "small")
    with torch.no_grad():
        small[3].bias.fill_(9)
    save_compact(small, tmp_path / "small")
    assert load_compact(mlp(), tmp_path / "small")[3].bias.tolist() == [9, 9]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(SynflowError, match="holds no compact network"):
        save_compact(small, tmp_path / "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "small"]


def test_only_compact_networks_are_saved(tmp_path):
    with pytest.raises(SynflowError, match="does not come from synflow.compact"):
        save_compact(mlp(), tmp_path / "small")


def test_damage_and_mistakes_are_named(small, tmp_path):
    folder = tmp_path / "small"
    save_compact(small, folder)
    with pytest.raises(SynflowError, match=r"0\.weight has shape \(5, 3\), expected \(6, 3\)"):
        load_compact(mlp(5), folder)
    with pytest.raises(SynflowError, match=r"is not there, expected"):
        load_compact(nn.Linear(3, 2), folder)
    with pytest.raises(SynflowError, match=r"compaction\.json is missing"):
        load_compact(mlp(), tmp_path)
    weights = folder / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SynflowError, match="checksum differs"):
        load_compact(mlp(), folder)
    weights.unlink()
    with pytest.raises(SynflowError, match=r"weights\.safetensors is missing"):
        load_compact(mlp(), folder)
    (folder / "compaction.json").write_text("{")
    with pytest.raises(SynflowError, match="is no JSON"):
        load_compact(mlp(), folder)
    (folder / "compaction.json").write_text("[" * 100_000)
    with pytest.raises(SynflowError, match="nested too deeply"):
        load_compact(mlp(), folder)
    (folder / "compaction.json").write_text('{"format": 99, "sha256": {}}')
    with pytest.raises(SynflowError, match="has format 99"):
        load_compact(mlp(), folder)


def test_a_record_from_elsewhere_may_only_name_indices_and_sizes(small, tmp_path):
    folder = tmp_path / "small"
    save_compact(small, folder)
    path = folder / "compaction.json"
    about = json.loads(path.read_text())
    (folder / "manifest.json").unlink()  # a forger would leave it out, too

    def load(change):
        altered = copy.deepcopy(about)
        change(altered)
        path.write_text(json.dumps(altered))
        with pytest.raises(SynflowError, match="is damaged"):
            load_compact(mlp(), folder)

    load(lambda a: a["sha256"].update({"../../etc/passwd": "0"}))
    load(lambda a: a["sha256"].pop("weights.safetensors"))
    load(lambda a: a["compaction"]["kept"]["0.weight"].update({"0": [0, 6]}))
    load(lambda a: a["compaction"]["kept"]["0.weight"].update({"0": [-1]}))
    load(lambda a: a["compaction"]["kept"]["0.weight"].update({"0": ["x"]}))
    load(lambda a: a["compaction"]["kept"]["0.weight"].update({"7": [0]}))
    load(lambda a: a["compaction"]["kept"]["0.weight"].update({"0": [1] * 100_000}))
    load(lambda a: a["compaction"]["kept"]["0.weight"].update({"0": [2, 1]}))
    load(lambda a: a["compaction"]["kept"]["0.weight"].update({"1": [[0]] * 100_000}))
    load(lambda a: a["compaction"]["kept"]["0.weight"].update({"1": [[0], [0, 1]]}))
    load(lambda a: a["compaction"]["attributes"].update({"0": {"forward": 1}}))
    load(lambda a: a["compaction"]["attributes"].update({"0": {"in_features": "3"}}))
    load(lambda a: a["compaction"]["attributes"].update({"nowhere": {"in_features": 3}}))
    load(lambda a: a.pop("compaction"))
    load(lambda a: a.update(compaction=[]))


@pytest.mark.parametrize("name", ["grouped_depthwise", "encoder_layer", "residual", "gru", "tied_autoencoder"])
def test_expanded_weights_have_dense_names_shapes_and_the_same_outputs(name):
    sample = ZOO[name]()
    masks = random_masks(sample.model, 0.9, 0.6)
    small = compact(sample.model, sample.example, masks)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.mul_(1.5)
    dense = expand(small, sample.model)
    assert {n: p.shape for n, p in dense.named_parameters()} == {n: p.shape for n, p in sample.model.named_parameters()}
    for name_, mask in masks.items():
        assert not dense.get_parameter(name_)[~mask].any()
    attach(dense, masks)
    args = sample.example if isinstance(sample.example, tuple) else (sample.example,)
    with torch.no_grad():
        torch.testing.assert_close(dense.eval()(*args), small.eval()(*args), rtol=1e-4, atol=1e-5)


def conv_groups():
    grouped = nn.Conv2d(16, 16, 3, groups=4, bias=False)
    layers = [nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), grouped, nn.ReLU(), nn.Conv2d(16, 2, 1)]
    return nn.Sequential(*layers), torch.randn(2, 3, 6, 6), (("5.weight", [0, 5, 8, 12]), ("3.weight", [1]))


def heads():
    model = nn.Sequential(nn.Linear(3, 16), SelfAttention(4, 4), nn.Linear(16, 2))
    name = "1.attention.out_proj.weight"
    return model, torch.randn(2, 5, 3), ((name, [4, 5, 6, 7]), (name, [0, 1, 2, 3, 4, 9]))


def hidden():
    model = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2))
    return model, torch.randn(2, 3), (("2.weight", [0, 5, 6]), ("2.weight", [1, 2]))


@pytest.mark.parametrize("build", [conv_groups, heads, hidden])
def test_a_network_that_was_compacted_twice_loads_and_expands_from_the_dense_one(build, tmp_path):
    model, example, unread = build()
    first = second = model
    for name, gone in unread:
        first, second = second, compact(second, example, {name: without(bake_copy(second), name, 1, gone)})
        assert count(second) < count(first)
    assert second.compaction.parameters == (count(model), count(second))
    save_compact(second, tmp_path / "twice")
    loaded = load_compact(model, tmp_path / "twice")
    assert loaded.compaction == second.compaction
    for again in (loaded, expand(second, model)):
        torch.testing.assert_close(again.eval()(example), second.eval()(example), rtol=1e-4, atol=1e-5)


def bake_copy(model):
    plain = copy.deepcopy(model)
    bake(plain)
    return plain


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_expanding_needs_the_dense_model(small):
    with pytest.raises(SynflowError, match=r"0\.weight has shape \(5, 3\) in the dense model, expected \(6, 3\)"):
        expand(small, mlp(5))
    with pytest.raises(SynflowError, match="is not the one that was compacted"):
        expand(small, nn.Linear(3, 2))


def test_every_flipped_bit_of_the_record_is_noticed(small, tmp_path):
    folder = tmp_path / "small"
    save_compact(small, folder)
    for name in ("compaction.json", "manifest.json"):
        content = (folder / name).read_bytes()
        for place in range(0, len(content), 7):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            (folder / name).write_bytes(damaged)
            try:
                loaded = load_compact(mlp(), folder)
            except SynflowError:
                continue
            assert json.loads(damaged) == json.loads(content), (name, place)  # white space
            assert loaded.compaction == small.compaction
        (folder / name).write_bytes(content)


def test_files_of_earlier_versions_load():
    folder = Path(__file__).parents[1] / "samples"
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    loaded = load_compact(model, folder / "compact")
    assert loaded[0].weight.shape == (3, 3)
    masks = load_masks(folder / "masks.safetensors", model)
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {"0.weight": 9, "3.weight": 6}
    expected = torch.load(folder / "outputs.pt", weights_only=True)
    torch.testing.assert_close(loaded.eval()(torch.ones(2, 3)), expected, rtol=0, atol=1e-6)
    assert {name: mask.shape for name, mask in attached(loaded).items()} == {"0.weight": (3, 3), "3.weight": (2, 3)}


def test_a_folder_of_an_earlier_version_is_replaced_and_files_of_the_user_are_not(small, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(Path(__file__).parents[1] / "samples" / "compact", old)
    save_compact(small, old)
    assert (old / "manifest.json").is_file()
    shutil.rmtree(old)
    shutil.copytree(Path(__file__).parents[1] / "samples" / "compact", old)
    (old / "weights.safetensors").write_bytes(b"trained for a week")
    with pytest.raises(SynflowError, match=r"weights\.safetensors was not written by synflow; move it away"):
        save_compact(small, old)
    (old / "compaction.json").write_text('{"garbage": "compaction of Monday"}')
    before = {path: path.read_bytes() for path in old.iterdir()}
    with pytest.raises(SynflowError, match=r"weights\.safetensors, .*compaction\.json were not written by synflow"):
        save_compact(small, old)
    assert {path: path.read_bytes() for path in old.iterdir()} == before
