"""Real processes: two that write to one folder at the same time, and one whose disk is full."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import synflow
from factories import FACTORY

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(synflow.__file__).parents[1])}
PRUNE = [sys.executable, "-m", "synflow", "prune", "net.py:make", "--steps", "3", "--out", "run", "--compression"]
pytestmark = pytest.mark.integration


def started(command, tmp_path, **options):
    return subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_two_processes_into_one_folder_leave_one_whole_network(tmp_path, force):
    (tmp_path / "net.py").write_text(FACTORY)
    both = [started([*PRUNE, compression, *force], tmp_path) for compression in ("5", "10")]
    for process in both:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0 or "is there already and is not empty" in errors, errors
    assert 0 in [process.returncode for process in both]
    certify = started([sys.executable, "-m", "synflow", "certify", "run", "--model", "net.py:make"], tmp_path)
    assert certify.wait(timeout=120) == 0, certify.stderr.read()
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_a_full_disk_leaves_nothing_half_done(tmp_path):
    (tmp_path / "net.py").write_text(FACTORY)
    smallest = 1000  # bytes that a file may have: fewer than the report needs
    process = started(
        [*PRUNE, "5"], tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (smallest, smallest))
    )
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 2, errors
    assert "cannot be written: File too large; what was there before is unchanged" in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 100 kB, where one may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", disk], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_fills_up_or_is_read_only_is_one_sentence(tmp_path, small_disk):
    (tmp_path / "net.py").write_text(FACTORY)
    command = [*PRUNE[:-3], "--out", "disk/run", "--compression", "5"]
    process = started(command, tmp_path)
    assert process.wait(timeout=120) == 0, process.stderr.read()
    before = {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}
    for again, cause in (("fill", "No space left on device"), ("ro", "Read-only file system")):
        if again == "ro":
            subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
            (tmp_path / "net.py").write_text("raise SystemExit('the model was built before the folder was looked at')")
        process = started([*command, "--force"], tmp_path)
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 2, errors
        assert f"disk/run cannot be written: {cause}; what was there before is unchanged" in errors
        assert len(errors.splitlines()) == 1
        assert {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()} == before


SAVING = """
import sys, torch, synflow
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))
example = torch.ones(2, 12)
masks = synflow.prune(model, example, compression=float(sys.argv[1]), steps=2)
small = synflow.compact(model, example, masks)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(25):
    synflow.save_masks(masks, "masks.safetensors")
    assert synflow.density(synflow.load_masks("masks.safetensors", model)) in (0.25, 0.125)
    synflow.save_compact(small, "small")
    assert synflow.load_compact(model, "small")(example).shape == (2, 4)
"""


def test_two_processes_that_save_and_load_at_the_same_place_do_not_disturb_each_other(tmp_path):
    both = [
        started([sys.executable, "-c", SAVING, compression], tmp_path, stdin=subprocess.PIPE)
        for compression in ("4", "8")
    ]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["masks.safetensors", "small"]
    assert not [path for path in (tmp_path / "small").iterdir() if path.name.startswith(".")]
