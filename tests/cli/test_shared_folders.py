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
