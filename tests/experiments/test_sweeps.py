"""Sweeps in this process, in worker processes and on Ray: the same folders, the same results, whatever is killed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import synflow
from checks import timeless
from synflow.errors import SynflowError
from synflow.experiments import local, sweeps
from synflow.experiments.configs import Config, configured, identity, to_dict
from synflow.experiments.recipes import Recipe
from synflow.experiments.results import collect
from synflow.experiments.runs import Context, execute, folder_of, is_done, locked
from synflow.experiments.sealed_json import read_json, read_lines

BASE = Config(
    model="fc", width=0.2, dataset="digits", train_per_class=15,
    recipe=Recipe(epochs=2, lr=0.05, batch_size=32, lr_schedule="cosine"),
)  # fmt: skip
GRID = sweeps.grid(BASE, {"method": ["synflow", "magnitude"], "compression": [2.0, 5.0], "seed": [0]})


def everything(root):
    """All that a sweep leaves, times aside: results and metrics by folder."""
    return {
        folder.name: (
            timeless(read_json(folder / "result.json")["outcome"]),
            timeless(read_lines(folder / "metrics.jsonl")),
            (folder / "masks.safetensors").stat().st_size if (folder / "masks.safetensors").exists() else None,
        )
        for folder in sorted(root.iterdir())
        if folder.is_dir()
    }


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The grid, done in this process and undisturbed."""
    root = tmp_path_factory.mktemp("calm")
    sweeps.run_sweep(GRID, root, Context(checkpoint_seconds=0.0), sweeps.Place(threads=1)).check()
    return everything(root)


def test_local_workers_give_the_same(tmp_path, calm):
    told = []
    outcome = sweeps.run_sweep(GRID, tmp_path, None, sweeps.Place("local", 2, 1), tell=told.append)
    outcome.check()
    assert sorted(outcome.done) == sorted(identity(config) for config in GRID)
    assert everything(tmp_path) == calm
    assert any(line.startswith("[4/4] ") for line in told)
    assert not list(tmp_path.glob(".order*"))


@pytest.mark.slow
def test_ray_gives_the_same(tmp_path, calm):
    pytest.importorskip("ray")
    told = []
    outcome = sweeps.run_sweep(GRID, tmp_path, None, sweeps.Place("ray", 2, 1), tell=told.append)
    outcome.check()
    assert everything(tmp_path) == calm
    assert len(told) == len(GRID)


def test_a_run_that_cannot_succeed_is_tried_once(tmp_path):
    bad = configured(BASE, dataset="cifar10", compression=2.0)
    local.work([bad], tmp_path, Context(), retries=3)
    failure = read_json(folder_of(bad, tmp_path) / "failure.json")
    assert "--data-dir" in failure["error"]
    assert failure["attempts"] == 1


@pytest.mark.parametrize(
    ("settings", "context", "said"),
    [
        ({"dataset": "cifar10"}, Context(), "--data-dir"),
        ({"dataset": "imagenet"}, Context(data_dir="nowhere"), "nowhere is no folder"),
        ({"model": "resnt20"}, Context(), "no model 'resnt20'"),
        ({"model": "vgg16"}, Context(), "at least 16 x 16 pixels"),
        ({"method": "none.py:f"}, Context(), "none.py: there is no such file"),
        ({"task": "trane"}, Context(), "no task 'trane' (did you mean train"),
        ({}, Context(device="cuda:77"), "device 'cuda:77' cannot be used"),
        ({}, Context(loggers=("paper",)), "no logger 'paper'; choose from mlflow, tensorboard, wandb"),
    ],
)
@pytest.mark.parametrize("on", ["here", "local"])
def test_what_every_run_needs_is_checked_before_the_first_one(tmp_path, settings, context, said, on):
    configs = [configured(BASE, compression=c, **settings) for c in (2.0, 5.0)]
    with pytest.raises(SynflowError, match=re.escape(said)):
        sweeps.run_sweep(configs, tmp_path, context, sweeps.Place(on))
    assert not list(tmp_path.iterdir()), "nothing was started"


def test_other_errors_are_tried_again(tmp_path, monkeypatch):
    tries, right = [], execute(GRID[0], tmp_path / "other")["outcome"]

    def flaky(run):
        tries.append(run)
        if len(tries) < 3:
            raise OSError("the network file system hiccupped")
        return right

    monkeypatch.setattr("synflow.experiments.tasks.TASKS", {"train": flaky})
    local.work([GRID[0]], tmp_path, Context(), retries=2)
    assert is_done(GRID[0], tmp_path)
    assert len(tries) == 3
    assert not (folder_of(GRID[0], tmp_path) / "failure.json").exists()


def test_a_run_in_other_hands_is_waited_for(tmp_path):
    folder, told = folder_of(GRID[0], tmp_path), []
    folder.mkdir(parents=True)
    lock = locked(folder)
    lock.__enter__()

    def tell(text):
        told.append(text)
        if text.startswith("[1/2]"):
            lock.__exit__(None, None, None)  # who held it has died

    outcome = sweeps.run_sweep(GRID[:2], tmp_path, tell=tell)
    outcome.check()
    assert sorted(outcome.done) == sorted(map(identity, GRID[:2]))
    assert told[0].endswith("left to it for now")
    assert [text[:5] for text in told[1:]] == ["[1/2]", "[2/2]"]


@pytest.mark.integration
def test_a_sweep_that_is_started_twice_succeeds_twice(tmp_path):
    words = "sweep --set model=fc --set width=0.2 --set train_per_class=15 --grid compression=2,3,4,5 --grid seed=0..1"
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "synflow", *words.split()], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert all("8 runs done" in text for text in said)


SCORE = """
from synflow.pruning.scores import traits

def small(network, masks=None):
    return {name: -weight.abs() for name, weight in network.weights.items()}

@traits(needs_data=True)
def loss(network, masks=None):
    from synflow.pruning.gradients import loss_gradients
    return {name: value.abs() for name, value in loss_gradients(network, masks, training=True).items()}

def at_once(step, steps, density):
    return density
"""


@pytest.mark.parametrize("on", ["here", "local", pytest.param("ray", marks=pytest.mark.slow)])
def test_scores_and_schedules_of_ones_own(tmp_path, monkeypatch, on):
    if on == "ray":
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(SCORE)
    base = configured(BASE, schedule="my.py:at_once", compression=5.0, steps=2)
    configs = sweeps.grid(base, {"method": ["my.py:small", "my.py:loss"]})
    root = tmp_path / "runs"
    sweeps.run_sweep(configs, root, None, sweeps.Place(on, 1, 1)).check()
    masks = synflow.load_masks(folder_of(configs[0], root) / "masks.safetensors")
    assert masks.about["method"] == "small"
    assert masks.about["schedule"] == "at_once"
    (tmp_path / "my.py").write_text(SCORE + "\n# another version")
    with pytest.raises(SynflowError, match=r"was done with another version of my\.py; remove the folder"):
        execute(configs[0], root)
    (tmp_path / "my.py").unlink()
    assert len(collect(root)[0]) == 2, "reading results runs no file"


def test_unknown_place(tmp_path):
    with pytest.raises(SynflowError, match="no place 'moon' to run on; choose from here, local, ray"):
        sweeps.run_sweep(GRID, tmp_path, None, sweeps.Place("moon"))


DRIVER = """
    import json, sys
    from pathlib import Path
    from synflow.experiments.configs import from_dict
    from synflow.experiments.runs import Context
    from synflow.experiments.sweeps import Place, run_sweep
    configs = [from_dict(values) for values in json.loads(Path(sys.argv[1]).read_text())]
    place = Place(sys.argv[3], workers=2, threads=1, retries=1000)
    run_sweep(configs, Path(sys.argv[2]), Context(checkpoint_seconds=0.0), place)
"""


def victims(driver, on):
    """Processes of the sweep that may be killed: workers, and for local sweeps the driver itself."""
    psutil = pytest.importorskip("psutil")
    found = []
    for child in driver.children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "synflow.experiments.local" in line or line.startswith("ray::_task"):
            found.append(child)
    return found + ([driver] if on == "local" and random.random() < 0.15 else [])


def worked_since(root, moment):
    """Whether a run has got on since then."""
    files = [file for name in ("metrics.jsonl", "masks.safetensors") for file in root.glob(f"*/{name}")]
    return any(file.stat().st_mtime > moment for file in files if file.exists())


@pytest.mark.slow
@pytest.mark.parametrize("on", ["local", "ray"])
def test_kill_9_at_random_moments(tmp_path, on):
    """At least 25 kills during a sweep: at the end every run is there once and equal to an undisturbed sweep."""
    psutil = pytest.importorskip("psutil")
    pytest.importorskip("ray" if on == "ray" else "psutil")
    long = configured(BASE, train_per_class=100, epochs=60, width=1.0)
    grid = sweeps.grid(long, {"method": ["synflow", "magnitude", "random"], "compression": [5.0], "seed": [0, 1]})
    sweeps.run_sweep(grid, tmp_path / "calm", Context(checkpoint_seconds=0.0), sweeps.Place(threads=1)).check()
    order, root = tmp_path / "grid.json", tmp_path / "stormy"
    order.write_text(json.dumps([to_dict(config) for config in grid]))
    root.mkdir()

    def start():
        command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(order), str(root), on]
        # Forked workers are in the driver's session, so that what is left can be found and ended by its id.
        return subprocess.Popen(command, start_new_session=True, env={**os.environ, "RAY_AUTH_MODE": "disabled"})

    random.seed(0)
    kills, last_kill, orphans, process = 0, time.time(), [], start()
    deadline = time.monotonic() + 1500
    while kills < 25 or process.poll() is None:
        assert time.monotonic() < deadline, f"{kills} kills, {sum(is_done(c, root) for c in grid)} of {len(grid)} done"
        time.sleep(random.uniform(0.3, 2.5))
        if process.poll() is not None:
            if kills >= 25:
                break
            # Done too soon: forget a result, so that there is more to interrupt.
            config = random.choice(grid)
            for name in ("result.json", "metrics.jsonl"):
                (folder_of(config, root) / name).unlink(missing_ok=True)
            process = start()
            continue
        # Starting a worker takes seconds; the kills are to strike runs at work.
        if kills >= 25 or not worked_since(root, last_kill):
            continue
        time.sleep(random.uniform(0.0, 1.0))
        driver = psutil.Process(process.pid)
        targets = victims(driver, on)
        if not targets:
            continue
        target = random.choice(targets)
        if target.pid == process.pid:
            orphans += driver.children(recursive=True)
        os.kill(target.pid, signal.SIGKILL)
        kills, last_kill = kills + 1, time.time()
        if target.pid == process.pid:
            process.wait()
            process = start()
    for orphan in orphans:
        try:
            orphan.wait(timeout=600)
        except psutil.NoSuchProcess:
            continue
    assert kills >= 25
    assert everything(root) == everything(tmp_path / "calm")
    assert {folder.name for folder in root.iterdir() if folder.is_dir()} == {identity(config) for config in grid}
