"""`synflow paper`, `sweep` and `results`: what they print, write and refuse."""

import csv
import json

import pytest

from synflow.cli import main

FACTORY = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
"""
SWEEP = "--set model=fc --set width=0.2 --set train_per_class=15 --set epochs=1 --set lr=0.05 --runs runs --threads 1"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def run(capsys, monkeypatch):
    def call(line, code=0):
        words = line.split() if isinstance(line, str) else line
        monkeypatch.setattr("sys.argv", ["synflow", *words])
        with pytest.raises(SystemExit) as leave:
            main(words)
        got = capsys.readouterr()
        assert leave.value.code == code, got.err
        assert "Traceback" not in got.err
        return got

    return call


def test_list_and_plan(run):
    assert "fig2            no      weights kept per layer" in run("paper list").out
    out = run("paper plan fig6 --scale paper").out
    assert "2,196" in out
    assert "GB" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_figure_is_made_and_drawn_again(run, tmp_path):
    out = run("paper fig4 --scale smoke --runs runs --out figures --threads 1").out
    assert "5 runs at smoke scale" in out
    assert "SynFlow" in out
    page = (tmp_path / "figures" / "fig4.md").read_text()
    assert "synflow paper fig4 --scale smoke --runs runs --out figures --threads 1" in page
    assert (tmp_path / "figures" / "fig4.svg").exists()
    out = run("paper fig4 --scale smoke --runs runs --out figures --threads 1").out
    assert out.count("was done") == 5
    run("paper draw fig4 --scale smoke --runs runs --out other")
    assert (tmp_path / "other" / "fig4.png").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("paper fig99", "no figure 'fig99'; choose from fig1"),
        ("paper fig4 --scale big", "no scale 'big'"),
        ("paper fig4 --set images", "'images' is no setting; write name=value"),
        ("paper fig4 --set imges=3", "no setting 'imges'"),
        ("paper draw fig4 --scale smoke", "do them first: synflow paper fig4 --scale smoke"),
        ("paper fig6 --runs runs", "--data-dir"),
        ("paper fig4 --scale smoke --on moon", "no place 'moon'"),
        ("sweep --grid method", "'method' is no axis"),
        ("sweep missing.toml", "missing.toml cannot be read"),
        ("results --runs nowhere", "nowhere is no folder of runs"),
    ],
)
def test_refusals(run, line, message):
    assert message in run(line, code=2).err


def test_sweep_and_results(run, tmp_path):
    grid = f"sweep {SWEEP} --grid method=synflow,random --grid compression=2,10"
    assert run(grid + " --dry-run").out.count("to do") == 4
    out = run(grid).out
    assert "4 runs done in runs" in out
    assert run(grid + " --dry-run").out.count(" done") == 4
    out = run("results --runs runs --sort compression").out
    assert "4 runs" in out
    assert run(["results", "--runs", "runs", "method=random", "compression>5"]).out.rstrip().endswith("1 runs")
    run("results --runs runs --out table.csv")
    with open(tmp_path / "table.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"synflow", "random"}
    found = json.loads(run("results --runs runs --json").out)
    assert len(found) == 4
    assert "no column 'top9'" in run("results --runs runs --columns top9", code=2).err


def test_a_damaged_result_is_named(run, tmp_path):
    run(f"sweep {SWEEP} --set compression=2")
    (path,) = tmp_path.glob("runs/*/result.json")
    path.write_text("{")
    assert "result.json is damaged" in run("results --runs runs").err
    run(f"sweep {SWEEP} --set compression=2")
    assert "1 runs" in run("results --runs runs").out


def test_networks_of_your_own(run, tmp_path):
    (tmp_path / "net.py").write_text(FACTORY)
    options = "--set epochs=1 --set train_per_class=15 --set compression=4 --runs runs --threads 1"
    run(f"sweep --set model=net.py:make {options}")
    (row,) = json.loads(run("results --runs runs --json").out)
    assert (row["total"], row["kept"]) == (64 * 20 + 20 * 10, (64 * 20 + 20 * 10) // 4)


@pytest.mark.parametrize("command", ["paper", "sweep", "results"])
def test_help_fits_80_columns(run, command):
    assert all(len(line) <= 80 for line in run(f"{command} --help").out.splitlines())
