"""Data sets: read from files laid out as published, refused when damaged, augmented from a seed."""

import gzip
import hashlib
import io
import pickle
import tarfile

import numpy as np
import pytest
import torch

from synflow.errors import SynflowError
from synflow.experiments import data
from synflow.experiments.data import cifar, idx
from synflow.experiments.data.unpickling import read_pickle


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def python_release(folder, names, labels_key, classes):
    """Files as the authors wrote them: protocol 2, keys of bytes."""
    folder.mkdir(parents=True)
    for position, name in enumerate(names):
        content = {b"data": noise(6, 3072) + position, labels_key: [i % classes for i in range(6)], b"filenames": ["x"]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def cifar10_files(root):
    python_release(root / "cifar-10-batches-py", [*cifar.CIFAR10[0].train, "test_batch"], b"labels", 10)


def test_cifar10_python_release(tmp_path):
    cifar10_files(tmp_path)
    found = data.load("cifar10", tmp_path, check=False)
    assert found.train_images.shape == (30, 3, 32, 32)
    assert found.test_images.shape == (6, 3, 32, 32)
    assert found.train_labels.tolist() == [0, 1, 2, 3, 4, 5] * 5
    # Row by row, first all red values, then green, then blue.
    assert found.train_images[1, 2, 3, 4] == noise(6, 3072)[1, 2 * 1024 + 3 * 32 + 4]


def test_cifar_in_its_archive_and_binary_is_the_same(tmp_path):
    cifar10_files(tmp_path / "python")
    wanted = data.load("cifar10", tmp_path / "python", check=False)
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed" / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "python" / "cifar-10-batches-py", "cifar-10-batches-py")
    binary = tmp_path / "binary" / "cifar-10-batches-bin"
    binary.mkdir(parents=True)
    for position, name in enumerate([*cifar.CIFAR10[1].train, "test_batch.bin"]):
        labels = np.arange(6, dtype=np.uint8)[:, None]
        (binary / name).write_bytes(np.hstack([labels, noise(6, 3072) + position]).tobytes())
    for place in ("packed", "binary"):
        found = data.load("cifar10", tmp_path / place, check=False)
        assert torch.equal(found.train_images, wanted.train_images)
        assert torch.equal(found.test_labels, wanted.test_labels)


def test_cifar100_takes_the_fine_labels(tmp_path):
    python_release(tmp_path / "cifar-100-python", ["train", "test"], b"fine_labels", 100)
    assert data.load("cifar100", tmp_path, check=False).train_labels.tolist() == list(range(6))
    binary = tmp_path / "b" / "cifar-100-binary"
    binary.mkdir(parents=True)
    rows = np.hstack([np.full((6, 1), 9, np.uint8), np.arange(6, dtype=np.uint8)[:, None], noise(6, 3072)])
    for name in ("train.bin", "test.bin"):
        (binary / name).write_bytes(rows.tobytes())
    assert data.load("cifar100", tmp_path / "b", check=False).train_labels.tolist() == list(range(6))


def test_a_file_that_is_not_the_published_one_is_refused(tmp_path):
    cifar10_files(tmp_path)
    with pytest.raises(SynflowError, match=r"data_batch_1: MD5 [0-9a-f]{32}, expected c99c.* fetch it again"):
        data.load("cifar10", tmp_path)


def test_binary_files_of_another_size_are_refused(tmp_path):
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(b"x" * 3075)
    with pytest.raises(SynflowError, match=r"train.bin: 3,075 bytes, expected a multiple of 3,074"):
        data.load("cifar100", tmp_path, check=False)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (pickle.dumps({"data": eval}), "asks for builtins.eval"),
        (pickle.dumps({"data": np.zeros(3)}, protocol=2), "does not hold bytes"),
        (
            pickle.dumps({"data": np.array([eval], dtype=object)}, protocol=2),
            "asks for __builtin__.eval",
        ),
        (pickle.dumps([1, 2]), "holds a list"),
        (b"\x80\x02garbage", "is no CIFAR file"),
        (b"", "is no CIFAR file"),
    ],
)
def test_pickles_that_want_more_than_arrays_of_bytes_are_refused(content, why):
    with pytest.raises(SynflowError, match=why):
        read_pickle(content, "data_batch_1")


def test_an_array_that_claims_more_than_it_holds_is_refused():
    good = pickle.dumps({"data": np.zeros((2, 8), np.uint8)}, protocol=2)
    assert read_pickle(good, "f")["data"].shape == (2, 8)
    bad = good.replace(b"K\x02K\x08\x86", b"K\x09K\x08\x86")
    assert bad != good
    with pytest.raises(SynflowError, match="another size than its shape says"):
        read_pickle(bad, "f")


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files(tmp_path, name, packed, monkeypatch):
    arrays = [noise(12, 28, 28), noise(12) % 10, noise(4, 28, 28), noise(4) % 10]
    checksums = {}
    (tmp_path / name).mkdir()
    for file, array in zip(idx.MNIST, arrays, strict=True):
        content = idx_bytes(array)
        checksums[file] = hashlib.md5(content).hexdigest()
        (tmp_path / name / (file + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    monkeypatch.setattr(idx, "MNIST", checksums)
    monkeypatch.setattr(idx, "FASHION", checksums)
    found = data.load(name, tmp_path)
    assert found.train_images.shape == (12, 1, 28, 28)
    assert np.array_equal(found.train_images[:, 0].numpy(), arrays[0])
    assert found.test_labels.tolist() == arrays[3].tolist()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\0\0\x08\x03" + b"\0" * 3, "no idx file"),
        (b"\0\0\x0d\x03" + b"\0" * 40, "no idx file"),
        (b"\0\0\x08\x03" + b"\0\0\0\x02" * 3 + b"1234567", r"7 values, expected 8 for shape \[2, 2, 2\]"),
    ],
)
def test_damaged_idx_files(tmp_path, content, why):
    for file in idx.MNIST:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(SynflowError, match=why):
        data.load("mnist", tmp_path, check=False)


def image(path, size, mode="RGB"):
    pillow = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = noise(size[1], size[0], 3) if mode == "RGB" else noise(size[1], size[0])
    pillow.fromarray(pixels, mode).save(path, "PNG")
    return pixels


def tiny_files(root):
    (root / "val").mkdir(parents=True)
    (root / "wnids.txt").write_text("n2\nn1\n")
    for wnid in ("n1", "n2"):
        for number in range(3):
            image(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", (64, 64), "L" if number else "RGB")
    image(root / "val" / "images" / "val_0.JPEG", (64, 64))
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn1\t0\t0\t1\t1\n")


def test_tiny_imagenet_layout(tmp_path):
    tiny_files(tmp_path / "tiny-imagenet-200")
    found = data.load("tiny-imagenet", tmp_path)
    assert found.train_images.shape == (6, 3, 64, 64)
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1, 1]  # in the order of wnids.txt
    assert found.test_labels.tolist() == [1]
    assert "2 of 200 classes" in found.notes[0]
    grey = found.train_images[1]
    assert torch.equal(grey[0], grey[2])
    assert len(data.load("tiny-imagenet", tmp_path, train_per_class=2).train_labels) == 4


def test_tiny_imagenet_refuses_names_that_lead_elsewhere(tmp_path):
    tiny_files(tmp_path)
    (tmp_path / "val" / "val_annotations.txt").write_text("../../secret\tn1\t0\n")
    with pytest.raises(SynflowError, match="names no class"):
        data.load("tiny-imagenet", tmp_path)


def test_imagenet_is_cut_to_224(tmp_path):
    exact = image(tmp_path / "val" / "n1" / "a.png", (224, 224))
    image(tmp_path / "val" / "n2" / "b.png", (300, 260))
    found = data.load("imagenet", tmp_path)
    assert found.train_images.shape == (2, 3, 224, 224)
    assert np.array_equal(found.train_images[0].permute(1, 2, 0).numpy(), exact)
    assert found.notes == ("validation images stand in for training images", "2 of 1000 classes", "2 images")


def test_a_damaged_image_is_named(tmp_path):
    image(tmp_path / "val" / "n1" / "a.png", (224, 224))
    (tmp_path / "val" / "n1" / "b.png").write_bytes(b"no image")
    with pytest.raises(SynflowError, match=r"b.png is no image"):
        data.load("imagenet", tmp_path)


@pytest.mark.parametrize("name", sorted({*data.DATASETS} - {"digits", "digits32"}))
def test_a_missing_data_set_says_what_where_and_whence(tmp_path, name):
    with pytest.raises(SynflowError) as error:
        data.load(name, tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "published at http" in str(error.value)
    with pytest.raises(SynflowError, match="--data-dir"):
        data.load(name)


def test_unknown_names_list_the_choices():
    with pytest.raises(SynflowError, match="no data set 'cifar' .did you mean cifar10 or.*; choose from cifar10"):
        data.load("cifar")


@pytest.mark.parametrize("name", ["digits", "digits32"])
def test_digits_come_with_the_package(name):
    found = data.load(name)
    assert (found.classes, found.shape) == data.SHAPES[name]
    assert len(found.train_labels) == 1797 - 360
    assert torch.bincount(found.test_labels).tolist() == [36] * 10
    seen = data.normalise(found.train_images, found)
    assert abs(seen.mean()) < 0.01
    assert abs(seen.std() - 1) < 0.15


def test_subsets_are_balanced_and_always_the_same():
    one, two = (data.load("digits", train_per_class=7, test_per_class=5) for _ in range(2))
    assert torch.bincount(one.train_labels).tolist() == [7] * 10
    assert torch.bincount(one.test_labels).tolist() == [5] * 10
    assert torch.equal(one.train_images, two.train_images)
    with pytest.raises(SynflowError, match="37 per class were asked for"):
        data.load("digits", test_per_class=37)


def test_crops_are_windows_of_the_padded_image_and_half_are_mirrored():
    images = torch.from_numpy(noise(200, 2, 5, 6))
    found = data.augment(images, 2, True, torch.Generator().manual_seed(3))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    mirrored, places = 0, set()
    for original, crop in zip(padded, found, strict=True):
        windows = {(t, left): original[:, t : t + 5, left : left + 6] for t in range(5) for left in range(5)}
        plain = [place for place, window in windows.items() if torch.equal(window, crop)]
        flipped = [place for place, window in windows.items() if torch.equal(window.flip(2), crop)]
        assert plain or flipped
        mirrored += bool(flipped)
        places |= set(plain or flipped)
    assert 70 < mirrored < 130
    assert len(places) == 25


def test_batches_depend_on_seed_and_epoch_alone():
    found = data.load("digits")

    def epoch(seed, number):
        return torch.cat([images for images, _ in data.batches(found, 100, seed, number)])

    torch.manual_seed(1)
    first = epoch(0, 0)
    torch.manual_seed(2)
    assert torch.equal(first, epoch(0, 0))
    assert not torch.equal(first, epoch(0, 1))
    assert not torch.equal(first, epoch(1, 0))
    assert len(first) == len(found.train_labels)


def test_no_batch_of_one():
    found = data.subset(data.load("digits"), 1)
    assert [len(labels) for _, labels in data.batches(found, 3, 0, 0)] == [3, 3, 4]


def test_scoring_batches_are_as_many_as_asked_for():
    found = data.load("digits")
    sizes = [len(labels) for _, labels in data.scoring_batches(found, 100, size=64)]
    assert sizes == [64, 36]


def test_archives_are_never_unpacked_to_disk(tmp_path):
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("../escape")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(SynflowError, match="no readable file cifar-10-batches-py/data_batch_1"):
        data.load("cifar10", tmp_path, check=False)
    assert not (tmp_path.parent / "escape").exists()
