"""`synflow paper`, `sweep` and `results`: what they print, write and refuse."""

import csv
import json
import re
import statistics

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
    planned = run(grid + " --dry-run").out
    assert re.search(r"^4 runs, 4 to do: about \d+ (s|min) on this machine", planned, flags=re.M)
    assert re.search(r"^random +10 +to do +train-fc-digits-random-", planned, flags=re.M)
    assert "all: model fc, width 0.2" in planned
    out = run(grid).out
    assert "4 runs done in runs" in out
    assert "4 runs, 0 to do\n" in run(grid + " --dry-run").out
    out = run("results --runs runs --sort compression").out
    assert "4 runs" in out
    assert run(["results", "--runs", "runs", "method=random", "compression>5"]).out.rstrip().endswith("1 run")
    run("results --runs runs --out table.csv")
    with open(tmp_path / "table.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"synflow", "random"}
    found = json.loads(run("results --runs runs --json").out)
    assert len(found) == 4
    assert "no column 'top9'" in run("results --runs runs --columns top9", code=2).err


def test_seeds_are_averaged_and_what_varies_is_a_column(run, tmp_path):
    run(f"sweep {SWEEP} --grid method=synflow --grid method=magnitude --grid compression=2,20 --grid seed=0..2")
    out = run("results").out
    assert max(map(len, out.splitlines())) <= 80
    rows = re.findall(r"^(magnitude|synflow) +(\d+) +(\d+) +([\d.]+ ± [\d.]+) ", out, flags=re.M)
    assert [row[:3] for row in rows] == [
        ("magnitude", "2", "3"), ("magnitude", "20", "3"), ("synflow", "2", "3"), ("synflow", "20", "3")
    ]  # fmt: skip
    assert "all: model fc, width 0.2, dataset digits" in out
    each = json.loads(run("results --json").out)
    mine = [row["top1"] for row in each if (row["method"], row["compression"]) == ("synflow", 20)]
    assert rows[-1][3] == f"{statistics.fmean(mine):.2f} ± {statistics.stdev(mine):.2f}"
    run("results --out table.csv --mean")
    with open(tmp_path / "table.csv") as file:
        stored = list(csv.DictReader(file))
    assert float(stored[-1]["top1_deviation"]) == pytest.approx(statistics.stdev(mine))
    run("results --sort -top1 --out table.tex")
    tex = (tmp_path / "table.tex").read_text().splitlines()
    assert tex[0].startswith(r"\begin{tabular}{lrrrl")
    assert tex[2].startswith("method & compression & runs & top1 & connected & ")
    assert tex[2].endswith(r"train\_seconds \\")
    means = [float(line.split("&")[3].split("$")[0]) for line in tex[4:8]]
    assert means == sorted(means, reverse=True)
    run("results --out table.md")
    assert "| synflow | 20 | 3 | " in (tmp_path / "table.md").read_text()
    run("results --figure sweep.svg")
    drawn = (tmp_path / "sweep.svg").read_text()
    assert drawn.count("<path") > 10
    assert "a figure is a .svg" in run("results --figure sweep.bmp", code=2).err
    assert "needs a setting of numbers that varies" in run("results --figure a.svg --x method", code=2).err
    wide = run("results --columns method,compression,seed,top1,top5,connected,kept,total,idle,flow_log2,command").out
    assert max(map(len, wide.splitlines())) <= 80
    assert "no room for" in wide


def test_results_stay_visible_where_many_settings_vary(run):
    run(f"sweep {SWEEP} --set compression=2")
    run(
        "sweep --set model=conv --set width=0.25 --set dataset=digits32 --set train_per_class=5 --set compression=5 "
        "--set method=magnitude --set ablation=shuffle --set schedule=linear --set batch_size=16 --set lr=0.01"
    )
    out = run("results").out
    assert max(map(len, out.splitlines())) <= 80
    head = next(line for line in out.splitlines() if line.startswith("model"))
    assert {"method", "compression", "runs", "top1"} <= set(head.split())
    assert "no room for" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sweep --set model=fc --set model=conv", "--set model is given twice"),
        ("sweep --set seed=1 --grid seed=2,3", "seed is given by --set and by --grid"),
        ("sweep --grid seed=5..1", "the axis seed must be a list of values"),
        ("sweep --grid seed=0..99999999", "the axis seed has more than 10,000 values"),
        ("sweep --set method=synflo", "(did you mean synflow or synflow_l2?); choose from balanced, "),
        ("sweep --set optimizer=lion", "choose from adam, adamw, momentum, sgd\n"),
        ("sweep --set drops=[1.5]", "drops must be a list of whole numbers"),
    ],
)
def test_settings_are_never_dropped_silently(run, line, said):
    err = run(line, code=2).err
    assert said in err
    assert "callable" not in err


def test_lists_of_settings_and_their_defaults(run, tmp_path):
    shown = run("sweep --list").out
    assert re.search(r"^compression +float +1", shown, flags=re.M)
    assert re.search(r"^optimizer +str +momentum", shown, flags=re.M)
    assert max(map(len, shown.splitlines())) <= 80
    (tmp_path / "sweep.toml").write_text(
        '[base]\nmodel = "fc"\n[grid]\nseed = "0..1"\n'
        '[[runs]]\nmethod = "synflow"\ncompression = 10\n[[runs]]\nmethod = "random"\nscope = "erk"\ncompression = 5\n'
    )
    planned = run("sweep sweep.toml --dry-run").out
    assert re.findall(r"^(\w+) +(\d+) +(\w+) +(\d) +to do", planned, flags=re.M) == [
        ("synflow", "10", "global", "0"), ("synflow", "10", "global", "1"),
        ("random", "5", "erk", "0"), ("random", "5", "erk", "1"),
    ]  # fmt: skip
    assert "epochs 20" in planned, "digits are trained with a recipe that suits them"
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert "nested too deeply" in run("sweep deep.json", code=2).err


def test_a_damaged_result_is_named(run, tmp_path):
    run(f"sweep {SWEEP} --set compression=2")
    (path,) = tmp_path.glob("runs/*/result.json")
    path.write_text("{")
    assert "result.json is damaged" in run("results --runs runs").err
    run(f"sweep {SWEEP} --set compression=2")
    assert "1 run\n" in run("results --runs runs").out


def test_networks_of_your_own(run, tmp_path):
    (tmp_path / "net.py").write_text(FACTORY)
    options = "--set epochs=1 --set train_per_class=15 --set compression=4 --runs runs --threads 1"
    run(f"sweep --set model=net.py:make {options}")
    (row,) = json.loads(run("results --runs runs --json").out)
    assert (row["total"], row["kept"]) == (64 * 20 + 20 * 10, (64 * 20 + 20 * 10) // 4)


@pytest.mark.parametrize("command", ["paper", "sweep", "results"])
def test_help_fits_80_columns(run, command):
    assert all(len(line) <= 80 for line in run(f"{command} --help").out.splitlines())


def test_a_sweep_says_that_nothing_is_pruned_at_compression_one(run):
    told = run("sweep --set model=fc --set dataset=digits --grid method=synflow,snip --dry-run").out
    assert "at compression 1 nothing is pruned: there synflow, snip is the dense" in " ".join(told.split())
    assert "1 run, 1 to do" in told
    assert "nothing is pruned" not in run("sweep --set model=fc --grid method=dense --dry-run").out
