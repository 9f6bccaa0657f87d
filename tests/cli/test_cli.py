"""The command line: what it writes, prints and refuses. In one process, since importing torch takes seconds."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import synflow
from factories import FACTORY
from synflow.cli import main
from synflow.models.built_in import MODELS


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["synflow", "..."])
    (tmp_path / "net.py").write_text(FACTORY)


@pytest.fixture
def run(capsys):
    def call(line, code=0):
        with pytest.raises(SystemExit) as leave:
            main(line.split() if isinstance(line, str) else line)
        got = capsys.readouterr()
        assert leave.value.code == code, got.err
        assert "Traceback" not in got.err
        return got

    return call


@pytest.fixture
def pruned(run):
    run("prune net.py:make --compression 10 --out pruned")
    return "pruned"


def test_a_warning_is_one_line_without_a_place_in_the_code(run, tmp_path):
    block = (
        "class Block(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.left = nn.Linear(4, 4, bias=False)\n"
        "    def forward(self, x):\n"
        "        return x + self.left(x)\n"
    )
    layers = "nn.Sequential(nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 2))"
    make = f"def make():\n    return {layers}, torch.ones(1, 4)\n"
    (tmp_path / "blocks.py").write_text(f"import torch\nfrom torch import nn\n{block}{make}")
    shown = run("prune blocks.py:make --keep 3 --score balanced --steps 2")
    (line,) = shown.err.splitlines()
    assert line.startswith("warning: 3 weights are too few to keep all 4 layers alive")


def test_prune_writes_what_it_says(run, tmp_path):
    shown = run("prune net.py:make --compression 10 --out pruned")
    assert re.search(r"weights +228 of 2,280 kept \(10x", shown.out)
    assert re.search(r"connected +yes", shown.out)
    assert [len(re.findall(rf"^{layer} ", shown.out, flags=re.M)) for layer in (0, 2, 4)] == [1, 1, 1]
    assert shown.err == "", "no bars where there is no terminal"
    assert "next: synflow compact pruned --model net.py:make" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    folder = tmp_path / "pruned"
    assert sorted(path.name for path in folder.iterdir()) == [
        "certificate.json", "facts.json", "manifest.json", "masks.safetensors", "report.html", "run.json",
        "weights.safetensors",
    ]  # fmt: skip
    masks = synflow.load_masks(folder / "masks.safetensors")
    assert sum(int(mask.sum()) for mask in masks.values()) == 228
    torch.manual_seed(0)
    namespace = {}
    exec(FACTORY, namespace)
    model = namespace["make"]()
    assert all(
        torch.equal(value, model.state_dict()[name])
        for name, value in load_file(folder / "weights.safetensors").items()
    )
    expected = synflow.prune(model, torch.ones(1, 12), compression=10)
    assert all(torch.equal(masks[name], expected[name]) for name in expected)
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["kept"] == 228
    assert len(certificate["steps"]) == 100
    assert not list(tmp_path.glob(".pruned*")), "nothing temporary stays"


def test_prune_without_out_writes_nothing(run, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    shown = run("prune net.py:make --density 0.5 --steps 3")
    assert "nothing was written" in shown.out
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in str(path)] == before


def test_json_is_all_there_is_on_standard_output(run):
    shown = run("prune net.py:make --keep 100 --steps 5 --json")
    got = json.loads(shown.out)
    assert got["certificate"]["kept"] == 100
    assert got["pruning"]["method"] == "synflow"
    assert [layer["name"] for layer in got["layers"]] == ["0.weight", "2.weight", "4.weight"]


@pytest.mark.parametrize(("target", "kept"), [("--compression 20", 114), ("--density 0.1", 228), ("--keep 99", 99)])
def test_targets_without_search_are_exact(run, target, kept):
    assert json.loads(run(f"prune net.py:make {target} --steps 5 --json").out)["certificate"]["kept"] == kept


def test_flops_are_searched_and_met(run):
    got = json.loads(run("prune net.py:with_example --flops 0.5 --steps 10 --json").out)
    target = got["target"]
    assert target["met"]
    assert 0.3 < target["reached"] <= 0.5
    assert got["certificate"]["compression"] == pytest.approx(target["compression"], rel=0.01)


def test_speedup_is_measured_and_told_with_its_spread(run):
    shown = run("prune net.py:make --speedup 1.0 --steps 3 --batch 4 --out fast")
    assert re.search(r"inference at batch 4 is \d+\.\d+ times\s+faster \(quartiles \d", shown.out)
    timings = json.loads(Path("fast/facts.json").read_text())["benchmark"]["timings"]
    assert {row["variant"] for row in timings} == {"dense", "masked", "compact"}


def test_a_target_out_of_reach_leaves_with_one_and_says_so(run):
    shown = run("prune net.py:make --speedup 100000 --steps 2 --batch 2", code=1)
    assert "target was not reached" in shown.out


@pytest.mark.usefixtures("pruned")
def test_inspect_reads_folders_and_bare_masks(run):
    shown = run("inspect pruned")
    assert "228 of 2,280 weights kept (10x)" in shown.out
    assert "method synflow" in shown.out
    assert "live units: with a weight on a path" in shown.out
    bare = run("inspect pruned/masks.safetensors").out
    assert "228 of 2,280" in bare
    assert "live units" not in bare, "masks alone do not tell what lies on a path"
    assert {row["live_units"] for row in json.loads(run("inspect pruned/masks.safetensors --json").out)["layers"]} == {
        None
    }
    got = json.loads(run("inspect pruned --json").out)
    assert sum(layer["kept"] for layer in got["layers"]) == 228


BRANCH = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 20)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))

def make():
    return nn.Sequential(nn.Linear(20, 20), Block(), nn.Linear(20, 5)), torch.ones(1, 20)
"""


def test_dead_layers_are_told_beside_empty_ones_everywhere(run, tmp_path):
    (tmp_path / "branch.py").write_text(BRANCH)
    run("prune branch.py:make --compression 5 --out whole")
    masks = synflow.load_masks("whole/masks.safetensors")
    masks["1.a.weight"].zero_()  # b keeps weights, but nothing feeds them
    synflow.save_masks(masks, "dead.safetensors")
    shown = run("certify dead.safetensors --model branch.py:make").out
    assert re.search(r"empty layers +1\.a\.weight\n", shown)
    assert re.search(r"dead layers +1\.a\.weight, 1\.b\.weight\n", shown)
    shown = run("prune branch.py:make --compression 100 --out dead").out
    dead = re.search(r"dead layers +(\S+)", shown)[1]
    assert dead != "none"
    assert f"dead layers {dead.rstrip(',')}" in run("inspect dead").out
    compared = run("compare whole dead --report c.html").out
    assert re.search(r"B dead \(synflow, 100x\): connected, \d empty, [12] dead layers", compared)
    html = Path("dead/report.html").read_text()
    assert re.search(r"<dt>dead layers</dt><dd>1\.", html)
    assert "layers dead" in html
    assert "dead layers" in Path("c.html").read_text()


def test_long_names_stay_apart(run, tmp_path):
    tail = "_name_that_is_longer_than_the_column"
    (tmp_path / "long.py").write_text(re.sub(r"self\.([ab])\b", rf"self.\1{tail}", BRANCH))
    shown = run("prune long.py:make --compression 5").out
    assert len(re.findall(r"^1\.[ab]_name\S+…\S+ ", shown, flags=re.M)) == 2
    assert max(map(len, shown.splitlines())) <= 80


OWN = """
from synflow.pruning.scores import traits

def heavy(network, masks=None):
    return {name: weight.abs() for name, weight in network.weights.items()}

@traits(needs_data=True)
def reads(network, masks=None):
    return heavy(network)

def at_the_end(step, steps, density):
    return density if step == steps else 1.0
"""


def test_scores_and_schedules_of_ones_own(run, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    own = "--score own.py:heavy --schedule own.py:at_the_end --steps 3"
    got = json.loads(run(f"prune net.py:make --compression 3 {own} --json --out own").out)
    assert (got["pruning"]["method"], got["pruning"]["schedule"]) == ("heavy", "at_the_end")
    assert [step["kept"] for step in got["certificate"]["steps"]] == [2280, 2280, 760]
    run("prune net.py:make --compression 3 --score magnitude --out named")
    assert json.loads(run("compare own named --json").out)["overlaps"]["named"][-1]["overlap"] == 1
    assert "reads data; name a data set" in run("prune net.py:make --compression 10 --score own.py:reads", code=2).err
    assert "has no function 'gone'" in run("prune net.py:make --compression 10 --score own.py:gone", code=2).err
    assert "runs the file" in re.sub(r"[│\s]+", " ", run("prune --help").out)


def test_a_network_without_a_path_is_written_and_leaves_with_one(run):
    shown = run("prune net.py:make --compression 700 --score magnitude --out gone", code=1)
    assert "NO: no path" in shown.out
    assert shown.err.startswith("not connected: ")
    assert not json.loads(run("inspect gone --json").out)["certificate"]["connected"]


@pytest.mark.usefixtures("pruned")
def test_certify_measures_anew_and_fails_where_nothing_is_left(run):
    assert "Theorem 3's condition held in 100 of 100" in run("certify pruned --model net.py:make").out
    masks = synflow.load_masks("pruned/masks.safetensors")
    masks["2.weight"].zero_()
    synflow.save_masks(masks, "empty.safetensors")
    shown = run("certify empty.safetensors --model net.py:make", code=1)
    assert "NO: no path" in shown.out
    assert "2.weight" in shown.out
    assert json.loads(run("certify pruned --model net.py:make --json --write").out)["connected"]


@pytest.mark.usefixtures("pruned")
def test_a_folder_runs_no_code_by_itself(run):
    shown = run("certify pruned", code=2)
    assert "does not get to run code" in shown.err
    assert "--model net.py:make" in shown.err


@pytest.mark.usefixtures("pruned")
def test_compact_bench_export_go_on_from_the_folder(run):
    shown = run("compact pruned --model net.py:make")
    assert "parameters became" in shown.out
    torch.manual_seed(1)
    namespace = {}
    exec(FACTORY, namespace)
    small = synflow.load_compact(namespace["make"](), "pruned/compact")
    weights = load_file("pruned/weights.safetensors")
    dense = namespace["make"]()
    dense.load_state_dict(weights)
    synflow.attach(dense, synflow.load_masks("pruned/masks.safetensors", dense))
    x = torch.randn(4, 12)
    assert torch.allclose(small.eval()(x), dense.eval()(x), atol=1e-6)
    assert "compact units" in Path("pruned/report.html").read_text()
    assert "is there already" in run("compact pruned --model net.py:make", code=2).err
    run("compact pruned --model net.py:make --force")

    shown = run("bench pruned --model net.py:make --repeats 2 --train-batch 4 --batch 2 --folded --forms")
    assert re.search(r"training +4 +dense", shown.out)
    assert "Measured speed" in Path("pruned/report.html").read_text()
    timings = json.loads(Path("pruned/bench.json").read_text())["timings"]
    tasks = [t["task"] for t in timings]
    assert tasks[:9] == ["training step"] * 3 + ["inference"] * 3 + ["folded"] * 3
    assert set(tasks[9:]) == {"forms"}
    assert {"dense", "compact", "compact, frozen"} <= {t["variant"] for t in timings[9:]}

    pytest.importorskip("onnxruntime")
    run("export pruned --onnx --model net.py:make")
    from synflow.inference.onnx import onnx_session

    (got,) = onnx_session("pruned/model.onnx").run(
        None, {onnx_session("pruned/model.onnx").get_inputs()[0].name: x.numpy()}
    )
    assert torch.allclose(torch.from_numpy(got), dense(x), atol=1e-5)
    assert "is there already" in run("export pruned --onnx --model net.py:make", code=2).err
    assert "name the format" in run("export pruned --model net.py:make", code=2).err


@pytest.mark.usefixtures("pruned")
def test_compare_shows_densities_and_overlap(run, tmp_path):
    run("prune net.py:make --compression 10 --score magnitude --scope layer --out other")
    shown = run("compare pruned other --report compared.html")
    assert re.search(r"whole network +2,280 +10\.0% +10\.0% +\d", shown.out)
    html = (tmp_path / "compared.html").read_text()
    assert "pruned" in html
    assert "other" in html
    assert "Overlap of the masks" in html
    assert "is there already" in run("compare pruned other --report compared.html", code=2).err
    got = json.loads(run("compare pruned pruned/masks.safetensors --json").out)
    assert got["overlaps"]["pruned/masks.safetensors"][-1]["overlap"] == 1
    assert "named twice" in run("compare pruned pruned", code=2).err
    run("prune net.py:make_conv --input 1x3x8x8 --compression 5 --out conv")
    assert "no mask for" in run("compare pruned conv", code=2).err


@pytest.mark.parametrize("command", ["models", "scores", "schedules", "scopes", "data"])
def test_lists_name_everything_with_a_line(run, command):
    tables = {"models": MODELS, "scores": synflow.SCORES, "schedules": synflow.SCHEDULES, "scopes": synflow.SCOPES}
    got = json.loads(run(f"{command} --json").out)
    if command in tables:
        assert set(got) == set(tables[command])
    assert "digits" in got or command != "data"
    assert all(got.values())
    shown = run(command)
    assert all(re.search(rf"^{re.escape(name)}\s+\S", shown.out, flags=re.M) for name in got)
    assert max(map(len, shown.out.splitlines())) <= 80


def test_doctor_finds_this_machine_healthy(run):
    got = json.loads(run("doctor --json").out)
    assert got["healthy"]
    assert got["versions"]["torch"] == torch.__version__
    assert got["extras"]["cli"]["installed"]
    assert all(check["ok"] for check in got["self-test"].values())
    assert max(map(len, run("doctor").out.splitlines())) <= 80


def test_doctor_tries_the_packages_that_are_there(run, tmp_path, monkeypatch):
    """A package that is found and cannot be imported is no healthy one."""
    (tmp_path / "fine_thing.py").write_text("")
    (tmp_path / "sad_thing.py").write_text("raise RuntimeError('operator nms does not exist')")
    (tmp_path / "fatal_thing.py").write_text("import os; os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    from synflow.cli import doctor_checks

    monkeypatch.setattr(doctor_checks, "EXTRAS", {"x": ("fine_thing", "sad_thing", "fatal_thing"), "y": ("not_there",)})
    got = json.loads(run("doctor --json", code=1).out)
    assert got["extras"]["x"]["broken"] == {
        "sad_thing": "RuntimeError: operator nms does not exist",
        "fatal_thing": "importing it ends the process with code 3",
    }
    assert got["extras"]["y"]["missing"] == ["not_there"]
    assert "BROKEN: import sad_thing" in run("doctor", code=1).out


def test_data_scores_read_the_bundled_digits(run):
    pytest.importorskip("sklearn")
    got = json.loads(run("prune fc --score snip --data digits --compression 10 --json").out)
    assert got["pruning"]["method"] == "snip"
    assert got["layers"][0]["shape"] == [100, 64]


def test_weights_from_a_file_are_used(run):
    torch.manual_seed(5)
    namespace = {}
    exec(FACTORY, namespace)
    model = namespace["make"]()
    save_file(model.state_dict(), "w.safetensors")
    run("prune net.py:make --weights w.safetensors --compression 10 --out pruned")
    assert torch.equal(load_file("pruned/weights.safetensors")["0.weight"], model[0].weight)


def test_every_command_and_option_has_help(run):
    top = run("--help").out
    commands = re.findall(r"^│ ([a-z]+)  ", top, flags=re.M)
    assert {"prune", "inspect", "certify", "compact", "bench", "export", "compare", "models", "doctor"} <= set(commands)
    for command in commands:
        shown = run([command, "--help"]).out
        assert max(map(len, shown.splitlines())) <= 80
        described = re.findall(r"^│ [* ]*(--[a-z-]+)[^│]*│$", shown, flags=re.M)
        for line in [line for line in shown.splitlines() if re.match(r"│ [* ]*--", line)]:
            words = re.sub(r"--[\w-]+|-h\b|<\w+>|\b[A-Z|]+\b|\[[^\]]*\]|[│*]", " ", line).split()
            assert words, f"{command}: {line} says nothing"
        assert described
        assert run([command, "-h"]).out == shown
        assert not re.search(r"<\w", shown), "types of Python say nothing to a user"
    assert synflow.__version__ in run("--version").out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("synflow prune resnet1", {"resnet18", "resnet101", "resnet110", "resnet1202"}),
        ("synflow prune fc --score sn", {"snip"}),
    ],
)
def test_the_shell_completes_names(run, monkeypatch, words, offered):
    monkeypatch.setenv("_SYNFLOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert set(run([]).out.split()) == offered
