"""Runs: one folder each, done once, resumed to the bit; damage is noticed, nothing is lost."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch

import synflow
from checks import timeless
from synflow.errors import MissingExtraError, SynflowError
from synflow.experiments import results, runs, sweeps
from synflow.experiments.configs import Config, configured, from_dict, identity, to_dict
from synflow.experiments.recipes import Recipe
from synflow.experiments.runs import BusyError, Context, execute, folder_of, is_done, locked
from synflow.experiments.sealed_json import append_line, read_json, read_lines, write_json

QUICK = Config(
    model="fc", width=0.2, dataset="digits", train_per_class=15, compression=5.0,
    recipe=Recipe(epochs=3, lr=0.05, batch_size=32, lr_schedule="cosine"),
)  # fmt: skip
EAGER = Context(checkpoint_seconds=0.0)


def outcome(folder):
    return timeless(read_json(folder / "result.json")["outcome"])


def test_a_run_leaves_what_it_promises(tmp_path):
    found = execute(QUICK, tmp_path)
    folder = folder_of(QUICK, tmp_path)
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "metrics.jsonl", "masks.safetensors", "certificate.json", "result.json", "lock"
    }  # fmt: skip
    assert [line["epoch"] for line in read_lines(folder / "metrics.jsonl")] == [1, 2, 3]
    assert found["outcome"]["connected"] is True
    assert found["outcome"]["kept"] == round(found["outcome"]["total"] / 5)
    masks = synflow.load_masks(folder / "masks.safetensors")
    assert sum(int(mask.sum()) for mask in masks.values()) == found["outcome"]["kept"]
    assert from_dict(found["config"]) == QUICK


def test_done_runs_are_not_done_again(tmp_path, monkeypatch):
    execute(QUICK, tmp_path)
    monkeypatch.setattr("synflow.experiments.tasks.TASKS", {"train": lambda run: 1 / 0})
    assert execute(QUICK, tmp_path)["outcome"]["epochs"] == 3


@pytest.mark.parametrize("task", ["train", "imp", "magnitudes"])
@pytest.mark.parametrize("moment", [0, 1, 2])
def test_a_run_that_dies_goes_on_to_the_same_result(tmp_path, monkeypatch, task, moment):
    config = configured(QUICK, task=task, rounds=3, epochs=3 if task != "imp" else 1)
    execute(config, tmp_path / "calm", EAGER)

    class DeadError(BaseException):
        """Like a signal: nothing in a task may catch it."""

    seen = []
    original = runs.Run.record

    def record(self, metrics):
        original(self, metrics)
        seen.append(metrics)
        if len(seen) == moment + 1:
            raise DeadError

    monkeypatch.setattr(runs.Run, "record", record)
    with pytest.raises(DeadError):
        execute(config, tmp_path / "stormy", EAGER)
    folder = folder_of(config, tmp_path / "stormy")
    # A crash in the middle of a line is what a power cut leaves.
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 99, "tr')
    # So is a file that was being written.
    (folder / ".synflow-0123456789abcdef.pt").write_bytes(b"half a checkpoint")
    assert not is_done(config, tmp_path / "stormy")
    torch.manual_seed(123)
    execute(config, tmp_path / "stormy", EAGER)
    calm = folder_of(config, tmp_path / "calm")
    assert outcome(folder) == outcome(calm)
    assert timeless(read_lines(folder / "metrics.jsonl")) == timeless(read_lines(calm / "metrics.jsonl"))
    assert {path.name for path in folder.iterdir()} == {path.name for path in calm.iterdir()}


def test_a_damaged_checkpoint_is_put_aside(tmp_path):
    folder = folder_of(QUICK, tmp_path)
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").write_bytes(b"no checkpoint")
    execute(QUICK, tmp_path)
    assert (folder / "checkpoint.pt.damaged-0").read_bytes() == b"no checkpoint"


@pytest.mark.parametrize("damage", ["cut", "bit", "other", "empty"])
def test_a_damaged_result_is_noticed_kept_aside_and_done_again(tmp_path, damage):
    wanted = timeless(execute(QUICK, tmp_path)["outcome"])
    folder = folder_of(QUICK, tmp_path)
    path = folder / "result.json"
    whole = path.read_text()
    other = json.dumps(json.loads(whole) | {"outcome": {"top1": 100.0}})
    path.write_text({"cut": whole[:-40], "bit": whole.replace("1", "2", 1), "other": other, "empty": ""}[damage])
    rows, problems = results.collect(tmp_path)
    assert rows == []
    assert "result.json is damaged" in problems[0]
    assert not is_done(QUICK, tmp_path)
    assert timeless(execute(QUICK, tmp_path)["outcome"]) == wanted
    assert (folder / "result.json.damaged-0").exists()


def test_a_result_of_another_run_is_refused(tmp_path):
    execute(QUICK, tmp_path)
    folder_of(QUICK, tmp_path).rename(tmp_path / "train-fc-digits-synflow-000000000000")
    assert "belongs to another run" in results.collect(tmp_path)[1][0]


def test_two_processes_never_do_one_run(tmp_path):
    folder = folder_of(QUICK, tmp_path)
    folder.mkdir(parents=True)
    with locked(folder), pytest.raises(BusyError, match=rf"is being done by process {os.getpid()} on "):
        execute(QUICK, tmp_path)
    assert execute(QUICK, tmp_path)["outcome"]["epochs"] == 3


def test_a_lock_of_a_dead_process_is_free(tmp_path):
    code = """
        import os, sys
        from pathlib import Path
        from synflow.experiments.runs import locked
        with locked(Path(sys.argv[1])):
            os.kill(os.getpid(), 9)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=False)
    assert ended.returncode == -9
    assert (tmp_path / "lock").exists()
    with locked(tmp_path):
        pass


def test_failures_are_written_down_and_forgotten_on_success(tmp_path):
    bad = configured(QUICK, lr=1e9, epochs=2)
    outcome = sweeps.run_sweep([bad, QUICK], tmp_path)
    assert len(outcome.done) == 1
    ((name, why),) = outcome.failed.items()
    assert name == identity(bad)
    assert "the training loss is" in why
    failure = read_json(folder_of(bad, tmp_path) / "failure.json")
    assert failure["attempts"] == 1
    assert "Traceback" in failure["traceback"]
    with pytest.raises(SynflowError, match="1 of 2 runs failed"):
        outcome.check()


def limited(code, *arguments, limit):
    """Run code in a process that cannot write files larger than the limit, as on a disk that is full."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip


RUN = """
    import json, sys
    from synflow.errors import MissingExtraError, SynflowError
    from synflow.experiments.configs import from_dict
    from synflow.experiments.runs import Context, execute
    try:
        execute(from_dict(json.loads(sys.argv[1])), sys.argv[2], Context(checkpoint_seconds=0.0))
    except SynflowError as error:
        print(error)
        sys.exit(2)
"""


def test_a_full_disk_says_so_and_loses_nothing(tmp_path):
    config = configured(QUICK, width=1.0)
    found = limited(RUN, json.dumps(to_dict(config)), tmp_path, limit=20_000)
    assert found.returncode == 2, found.stderr
    assert "cannot be written: File too large; what was there before is unchanged" in found.stdout
    folder = folder_of(config, tmp_path)
    assert not (folder / "result.json").exists()
    assert not list(folder.glob(".synflow-*"))
    execute(config, tmp_path, EAGER)
    execute(config, tmp_path / "calm", EAGER)
    assert outcome(folder) == outcome(folder_of(config, tmp_path / "calm"))


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SynflowError, match=r"cannot be made: Not a directory; choose another folder with --runs"):
        execute(QUICK, tmp_path / "file" / "runs")


POWERLESS = """
    import json, os, sys
    import synflow.experiments.loggers, synflow.experiments.tasks
    from synflow.errors import MissingExtraError, SynflowError
    from synflow.experiments.configs import from_dict
    from synflow.experiments.runs import execute
    if os.geteuid() == 0:  # root may write anywhere
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
    for values in json.loads(sys.argv[1]):
        try:
            print(execute(from_dict(values), sys.argv[2])["outcome"]["epochs"])
        except SynflowError as error:
            print(error)
"""


def test_a_read_only_folder_says_so_and_loses_nothing():
    configs = [configured(QUICK, seed=seed) for seed in range(3)]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        before = execute(configs[0], root)
        folders = [folder_of(configs[0], root), folder_of(configs[1], root), root]
        folders[1].mkdir()
        for folder in folders:
            folder.chmod(0o555)
        found = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(POWERLESS), json.dumps([to_dict(c) for c in configs]), place],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        for folder in folders:
            folder.chmod(0o755)
        said = found.stdout.splitlines()
        assert len(said) == 3, found.stderr
        assert said[0] == "3"
        assert "lock cannot be written: Permission denied; choose another folder" in said[1]
        assert "cannot be made: Permission denied; choose another folder with --runs" in said[2]
        assert execute(configs[0], root) == before
        assert list(folders[1].iterdir()) == []


def test_json_files_notice_damage(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1.5, "b": [1, None]})
    assert {k: v for k, v in read_json(path).items() if k != "checksum"} == {"a": 1.5, "b": [1, None]}
    path.write_text(path.read_text().replace("1.5", "2.5"))
    with pytest.raises(SynflowError, match="do not match its checksum"):
        read_json(path)
    with pytest.raises(SynflowError, match="there is no such file"):
        read_json(tmp_path / "b.json")


def test_lines_survive_a_torn_end(tmp_path):
    path = tmp_path / "lines"
    for number in range(3):
        append_line(path, {"n": number})
    with open(path, "a") as file:
        file.write('{"n": 3')
    assert [line["n"] for line in read_lines(path)] == [0, 1, 2]
    assert read_lines(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methd": "x"}, "no setting 'methd'; choose from ablation"),
        ({"method": "unheard"}, "no method 'unheard'; choose from balanced, dense"),
        ({"compression": 0.5}, "compression must be at least 1, got 0.5"),
        ({"compression": "ten"}, "compression must be float, got 'ten'"),
        ({"epochs": 1.5}, "epochs must be int, got 1.5"),
        ({"dataset": "cifar"}, "no data set 'cifar'"),
        ({"ablation": "x"}, "no ablation"),
        ({"task": "x"}, "no task 'x'; choose from batch_norm"),
    ],
)
def test_bad_settings(tmp_path, changes, message):
    with pytest.raises(SynflowError, match=message):
        execute(configured(QUICK, **changes), tmp_path)


def test_names_of_runs_are_stable():
    """Runs on disk are found by these names: they may never change."""
    assert identity(Config()) == "train-resnet20-digits-dense-fcd56f7f63ed"
    assert identity(QUICK) == "train-fc-digits-synflow-276b288325b7"
    assert identity(from_dict(json.loads(json.dumps(to_dict(QUICK))))) == identity(QUICK)
    assert identity(configured(QUICK, seed=1)) != identity(QUICK)


def test_grids_from_files(tmp_path):
    (tmp_path / "g.toml").write_text(
        '[base]\nmodel = "fc"\nlr = 0.1\n[grid]\nmethod = ["snip", "synflow"]\nseed = [0, 1]'
    )
    (tmp_path / "g.yaml").write_text("base: {model: fc, lr: 0.1}\ngrid: {method: [snip, synflow], seed: [0, 1]}")
    (tmp_path / "g.json").write_text(
        '{"base": {"model": "fc", "lr": 0.1}, "grid": {"method": ["snip", "synflow"], "seed": [0, 1]}}'
    )
    grids = [sweeps.read_grid(tmp_path / f"g.{kind}") for kind in ("toml", "yaml", "json")]
    assert grids[0] == grids[1] == grids[2]
    assert len(grids[0]) == 2  # at compression 1 the methods are one run
    assert grids[0][0].recipe.lr == 0.1
    for text, why in (
        ("[grid]\nseed = 3", "must be a list"),
        ("x = 1", "expected the tables"),
        ("[", "cannot be under"),
    ):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(SynflowError, match=why):
            sweeps.read_grid(tmp_path / "bad.toml")


def test_tables(tmp_path):
    grid = sweeps.grid(configured(QUICK, epochs=1), {"method": ["random", "magnitude"], "compression": [2.0, 4.0]})
    sweeps.run_sweep(grid, tmp_path).check()
    rows, problems = results.collect(tmp_path)
    assert (len(rows), problems) == (4, [])
    assert {(row["method"], row["compression"]) for row in rows} == {
        (method, compression) for method in ("random", "magnitude") for compression in (2.0, 4.0)
    }
    assert len(results.select(rows, ["method=random", "compression>2"])) == 1
    assert len(results.select(rows, ["model~f"])) == 4
    assert len(results.select(rows, ["connected=yes", "method!=random"])) == 2
    assert results.select(rows, ["connected=no"]) == []
    assert results.select(rows, ["images>3"]) == []
    with pytest.raises(SynflowError, match="> compares numbers, got 'ten'"):
        results.select(rows, ["compression>ten"])
    with pytest.raises(SynflowError, match="no column 'methd'"):
        results.select(rows, ["methd=random"])
    results.write_table(rows, tmp_path / "t.csv")
    results.write_table(rows, tmp_path / "t.md")
    assert (tmp_path / "t.csv").read_text().count("\n") == 5
    assert (tmp_path / "t.md").read_text().count("\n") == 6
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    results.write_table(rows, tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").num_rows == 4


@pytest.mark.parametrize("logger", ["tensorboard", "mlflow", "wandb"])
def test_loggers(tmp_path, monkeypatch, logger):
    pytest.importorskip(logger)
    monkeypatch.setenv("WANDB_MODE", "offline")
    execute(configured(QUICK, epochs=2), tmp_path, Context(loggers=(logger,)))
    if logger == "tensorboard":
        assert list(tmp_path.glob("*/tensorboard/events*"))
    elif logger == "wandb":
        (stored,) = tmp_path.glob("*/wandb/offline-run-*/run-*.wandb")
        assert b"top1" in stored.read_bytes()
    else:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=(tmp_path / "mlruns").resolve().as_uri())
        experiment = client.get_experiment_by_name("synflow")
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.data.metrics["top1"] >= 0
        assert run.data.params["model"] == "fc"


def test_forged_results_are_named_and_left_out(tmp_path):
    """A result with the right checksum may still lack what readers rely on, or be nested without end."""
    execute(QUICK, tmp_path)
    path = folder_of(QUICK, tmp_path) / "result.json"
    whole = read_json(path)
    for part, forged in (
        ("config", 3), ("config", {"recipe": 3}), ("config", {"drops": ["x"]}), ("outcome", []), ("about", {}),
        ("about", {"seconds": "long", "threads": 1, "torch": "2"}),
    ):  # fmt: skip
        write_json(path, {**whole, part: forged})
        rows, problems = results.collect(tmp_path)
        assert not rows
        assert "result.json is damaged" in problems[0]
    path.write_text("[" * 100_000)
    assert "nested too deeply" in results.collect(tmp_path)[1][0]
    path.with_name("metrics.jsonl").write_text("[" * 100_000 + "\n")
    assert read_lines(path.with_name("metrics.jsonl")) == []


def test_a_logger_that_is_not_there_is_named_with_its_extra(tmp_path, monkeypatch):
    with pytest.raises(SynflowError, match="no logger 'notes'; choose from mlflow, tensorboard, wandb"):
        execute(QUICK, tmp_path, Context(loggers=("notes",)))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"this needs 'wandb'; install it with: pip install 'synflow\[wandb\]'"):
        execute(QUICK, tmp_path, Context(loggers=("wandb",)))
