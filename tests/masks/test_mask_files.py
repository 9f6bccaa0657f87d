"""Mask files: what is written comes back, and what was not written by us, or not to the end, does not."""

import json
import os
import pickle
import random
import stat
import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from masking import assert_same, small
from synflow import __version__
from synflow.errors import SynflowError
from synflow.masks.attach import attach, attached, fingerprint
from synflow.masks.files import _checksum, _decoded, _encoded, load_masks, save_masks
from synflow.masks.results import Masks


@pytest.fixture
def file(tmp_path):
    return tmp_path / "masks.safetensors"


@pytest.fixture
def saved(file):
    """A model and a file of masks for it."""
    model, masks = small()
    save_masks(Masks(masks, {"method": "synflow", "fingerprint": fingerprint(model)}), file, seed=3, compression=3.25)
    return model, masks, file


names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
shapes = st.lists(st.integers(0, 5), max_size=4)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
numbers = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
abouts = st.dictionaries(texts.filter(bool), texts | numbers | st.booleans() | st.none(), max_size=4)


@given(shapes=st.dictionaries(names, shapes, max_size=4), about=abouts, seed=st.integers(0, 1000))
def test_round_trip(tmp_path_factory, shapes, about, seed):
    about.pop("fingerprint", None)
    generator = torch.Generator().manual_seed(seed)
    masks = {name: torch.rand(shape, generator=generator) < 0.5 for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("files") / "masks"
    save_masks(Masks(masks, about), path)
    loaded = load_masks(path)
    assert_same(loaded, masks)
    assert [mask.dtype for mask in loaded.values()] == [torch.bool] * len(masks)
    assert loaded.about == about
    first = path.read_bytes()
    save_masks(loaded, path)
    assert path.read_bytes() == first, "the bytes are a function of the contents"


def test_one_bit_per_weight_in_an_ordinary_safetensors_file(saved):
    model, masks, file = saved
    with safetensors.safe_open(file, "pt") as handle:
        metadata = handle.metadata()
        sizes = {name: handle.get_tensor(name).shape for name in handle.keys()}  # noqa: SIM118 -- not a dict
    assert sizes == {name: (-(-mask.numel() // 8),) for name, mask in masks.items()}
    assert json.loads(metadata["about"]) == {"method": "synflow", "seed": 3, "compression": 3.25}
    assert metadata["synflow"] == __version__
    assert metadata["fingerprint"] == fingerprint(model)
    assert json.loads(metadata["shapes"])["conv.weight"] == [8, 2, 3, 3]
    big = {"weight": torch.ones(1000, 1000, dtype=torch.bool)}
    save_masks(big, file)
    assert file.stat().st_size < 126_000


def test_what_is_loaded_can_be_attached(saved):
    model, masks, file = saved
    loaded = load_masks(file, model)
    assert loaded.about["method"] == "synflow"
    assert loaded.about["fingerprint"] == fingerprint(model)
    attach(model, loaded)
    assert_same(attached(model), masks)
    assert_same(load_masks(file, model), masks)
    assert_same(load_masks(str(file), torch.optim.swa_utils.AveragedModel(model)), masks)


def test_masks_arrive_on_the_device_of_their_weights(saved):
    *_, file = saved
    assert {mask.device for mask in load_masks(file, small()[0]).values()} == {torch.device("cpu")}
    with pytest.raises(SynflowError, match="meta"):
        load_masks(file, small()[0].to("meta"))


def test_a_file_for_another_model_is_refused(saved):
    _, _, file = saved
    with pytest.raises(SynflowError, match=r"masks.safetensors: the model has no parameter conv.weight"):
        load_masks(file, nn.Linear(2, 2))
    other, _ = small()
    other.mix.weight = nn.Parameter(torch.ones(8, 7))
    with pytest.raises(SynflowError, match=r"mix.weight: the mask has shape \(8, 8\), the weight \(8, 7\)"):
        load_masks(file, other)
    other, _ = small()
    other.mix.bias = nn.Parameter(torch.ones(7))
    with pytest.raises(SynflowError, match=r"another architecture.*attach"):
        load_masks(file, other)


def test_without_the_models_fingerprint_the_masked_weights_decide(file):
    model, masks = small()
    save_masks(masks, file)
    model.mix.bias = nn.Parameter(torch.ones(7))
    assert_same(load_masks(file, model), masks)
    assert "fingerprint" not in load_masks(file).about


@pytest.mark.parametrize(
    ("masks", "about", "message"),
    [
        ({"a": torch.ones(2)}, {}, "a: a mask is a boolean tensor.*float32"),
        ({"a": [True]}, {}, "a: a mask is a boolean tensor.*list"),
        ({"a": torch.ones(2, 2).bool().to_sparse()}, {}, "a: a mask is a dense tensor"),
        ({"a": torch.ones(2, device="meta").bool()}, {}, "a: the mask is on the meta device"),
        ({"__metadata__": torch.ones(2).bool()}, {}, "'__metadata__' cannot be the name"),
        ({"": torch.ones(2).bool()}, {}, "'' cannot be the name"),
        ({"a\ud800": torch.ones(2).bool()}, {}, "cannot be the name"),
        ({3: torch.ones(2).bool()}, {}, "3 cannot be the name"),
        ({}, {"loss": float("nan")}, "about 'loss': only text and finite numbers"),
        ({}, {"data": torch.ones(2)}, "about 'data': only text and finite numbers"),
        ({}, {"seed": 10**5000}, "about 'seed': only text and finite numbers"),
        (nn.Linear(2, 2), {}, "masks must be a dict of boolean tensors.*got Linear"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_the_old_file_stays(saved, masks, about, message):
    _, old, file = saved
    with pytest.raises(SynflowError, match=message):
        save_masks(masks, file, **about)
    assert_same(load_masks(file), old)
    assert os.listdir(file.parent) == [file.name]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    _, masks, file = saved

    def no_space(*_):
        raise OSError(28, "No space left on device")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, no_space)
            with pytest.raises(SynflowError, match=r"cannot be written: .*No space left"):
                save_masks({"a": torch.ones(1).bool()}, file)
        assert os.listdir(file.parent) == [file.name]
        assert_same(load_masks(file), masks)


def test_an_interrupted_write_leaves_nothing(file, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_masks({"a": torch.ones(1).bool()}, file)
    assert os.listdir(file.parent) == []


def test_where_a_file_cannot_go(tmp_path):
    with pytest.raises(SynflowError, match="cannot be written"):
        save_masks({}, tmp_path / "no" / "such" / "folder")
    with pytest.raises(SynflowError, match="cannot be written"):
        save_masks({}, tmp_path)
    for name in ("null\0byte", "x" * 300):
        with pytest.raises(SynflowError, match="name"):
            save_masks({}, tmp_path / name)
        with pytest.raises(SynflowError, match="no such file|cannot be read"):
            load_masks(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_what_is_no_ordinary_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(SynflowError, match="folder or a device; name an ordinary file"):
            save_masks({}, tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_link_is_written_through_and_permissions_are_the_usual_ones(file):
    target = file.with_name("target")
    target.write_bytes(b"old")
    file.symlink_to(target)
    save_masks({}, file)
    assert file.is_symlink()
    assert load_masks(target) == {}
    (usual := file.with_name("usual")).touch()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def refused(path, message=None):
    model, _ = small()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(SynflowError, match=message) as error:
        load_masks(path, model)
    assert str(path) in str(error.value)
    assert_same(model.state_dict(), state)


def test_every_truncation_is_refused(saved):
    _, _, file = saved
    data = file.read_bytes()
    for size in [*range(40), *range(40, len(data), 37), len(data) - 1]:
        file.write_bytes(data[:size])
        refused(file)
    file.write_bytes(data + b"\0")
    refused(file)


def test_every_flipped_bit_of_a_small_file_is_refused(file):
    save_masks({"w": torch.tensor([True, False, True])}, file, seed=1)
    data = file.read_bytes()
    with file.open("r+b") as stream:  # written in place: cutting a file to nothing first takes milliseconds
        for position, byte in enumerate(data):
            for value in (*(byte ^ 1 << bit for bit in range(8)), byte):
                stream.seek(position)
                stream.write(bytes([value]))
                stream.flush()
                if value != byte:
                    with pytest.raises(SynflowError):
                        load_masks(file)
    assert load_masks(file).about["seed"] == 1


def test_random_damage_is_refused(saved):
    _, _, file = saved
    data = file.read_bytes()
    chance = random.Random(0)
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            start = chance.randrange(len(data))
            del damaged[start : start + chance.randrange(1, 20)]
        if damaged != data:
            file.write_bytes(damaged)
            with pytest.raises(SynflowError):
                load_masks(file)


@given(data=st.binary(max_size=200))
def test_noise_is_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("noise") / "file"
    path.write_bytes(data)
    with pytest.raises(SynflowError, match="no safetensors file"):
        load_masks(path)


class Bomb:
    """Unpickling one of these would leave a mark."""

    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path('exploded').touch()",)


def test_foreign_files(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(file, "no such file")
    refused(tmp_path, "no such file")
    file.write_bytes(pickle.dumps(Bomb()))
    refused(file, "no safetensors file")
    torch.save({"a": Bomb()}, file)
    refused(file, "no safetensors file")
    assert not Path("exploded").exists()
    safetensors.torch.save_file({"a": torch.ones(3)}, file)
    refused(file, "but not one of masks; masks are written by save_masks")
    safetensors.torch.save_file({"a": torch.ones(3)}, file, {"format": "pt"})
    refused(file, "but not one of masks")


def forged(file, packed, metadata):
    """A file whose author knew the format, checksum included."""
    metadata = {
        "format": "synflow masks", "version": "1", "synflow": "0", "about": "{}", "shapes": "{}", "fingerprint": "",
        "fingerprint of": "masks", **metadata,
    }  # fmt: skip
    metadata = {key: value for key, value in metadata.items() if value is not None}
    file.write_bytes(_encoded(packed, {**metadata, "checksum": _checksum(packed, metadata)}))
    return file


@pytest.mark.parametrize(
    ("packed", "metadata", "message"),
    [
        ({"a": b"\1"}, {"shapes": '{"a":[9]}'}, "size of a mask does not match its shape"),
        ({"a": b"\1\0"}, {"shapes": '{"a":[8]}'}, "size of a mask does not match"),
        ({"a": b""}, {"shapes": '{"a":[1099511627776,1099511627776]}'}, "size of a mask does not match"),
        ({"a": b""}, {"shapes": '{"a":[0,10000000000000000000000000000]}'}, "damaged"),
        ({"a": b"\1"}, {"shapes": '{"a":[-1,-1]}'}, "not a list of sizes"),
        ({"a": b"\1"}, {"shapes": '{"a":[true]}'}, "not a list of sizes"),
        ({"a": b"\1"}, {"shapes": '{"a":[1.0]}'}, "not a list of sizes"),
        ({"a": b"\1"}, {"shapes": '{"a":"1"}'}, "not a list of sizes"),
        ({"a": b"\1"}, {"shapes": '{"a":1}'}, "damaged"),
        ({"a": b"\3"}, {"shapes": '{"a":[1]}'}, "something behind the last weight"),
        ({"a": b"\1"}, {"shapes": '{"b":[1]}'}, "damaged"),
        ({"a": b"\1"}, {"shapes": "{}"}, "list of shapes does not match"),
        ({}, {"shapes": '{"a":[0]}'}, "damaged"),
        ({}, {"shapes": "[]"}, "damaged"),
        ({}, {"shapes": "nonsense"}, "damaged"),
        ({}, {"shapes": "[" * 100_000}, "damaged"),
        ({}, {"shapes": None}, "damaged"),
        ({}, {"about": None}, "damaged"),
        ({}, {"about": "[1]"}, "damaged"),
        ({}, {"about": "9" * 5000}, "damaged"),
        ({}, {"fingerprint": None, "fingerprint of": "model"}, "damaged"),
        ({}, {"version": "2"}, r"has format '2', synflow .* reads format 1; upgrade"),
        ({}, {"version": None}, "has format None"),
    ],
)
def test_hostile_contents_behind_a_right_checksum(file, packed, metadata, message):
    refused(forged(file, packed, metadata), message)


def test_checksum_and_canonical_bytes_are_checked(saved):
    _, _, file = saved
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"]["about"] = json.dumps({"method": "magnitude"})
    text = json.dumps(header, separators=(",", ":")).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    refused(file, "do not match its checksum")
    spaced = data[8 : 8 + size] + b" " * 8
    file.write_bytes(len(spaced).to_bytes(8, "little") + spaced + data[8 + size :])
    refused(file, "changed after it was written")


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,9]}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[2,1]}}',
        '{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        '{"__metadata__":{"format":"synflow masks"}, "a":' + "[" * 2000 + "]" * 2000 + "}",
        '{"__metadata__":[1,2]}',
        '{"__metadata__":{"format":1}}',
        "[]",
        "{}" + " " * 30,
    ],
)
def test_hostile_headers(file, header):
    file.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0\0\0\0")
    refused(file)


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 200_000_000, 9])
def test_a_header_that_claims_to_be_huge(file, size):
    file.write_bytes(struct.pack("<Q", size) + b"{}      ")
    refused(file, "no safetensors file")


@pytest.mark.parametrize(
    "value",
    [
        "[" * 100_000 + "]" * 100_000, "null", "3", '{"weight":[1000000000,-1]}', '{"weight":["ab"]}',
        '{"weight":[%s2,3]}' % ("1," * 20_000), '{"weight":[%s]}' % ("9" * 5000),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["shapes", "about"])
def test_forged_metadata_with_a_right_checksum_are_refused_in_one_sentence(tmp_path, key, value):
    path = tmp_path / "masks.safetensors"
    save_masks({"weight": torch.ones(2, 3).bool()}, path)
    packed, metadata = _decoded(path)
    rest = {**metadata, key: value}
    del rest["checksum"]
    path.write_bytes(_encoded(packed, {**rest, "checksum": _checksum(packed, rest)}))
    with pytest.raises(SynflowError, match="is damaged"):
        load_masks(path)


def test_places_that_cannot_be_read_or_written_are_named(tmp_path):
    masks = {"weight": torch.ones(2, 3).bool()}
    for place in (tmp_path, tmp_path / "none" / "masks.safetensors"):
        with pytest.raises(SynflowError, match=place.name):
            load_masks(place)
        with pytest.raises(SynflowError, match="cannot be written"):
            save_masks(masks, place)
