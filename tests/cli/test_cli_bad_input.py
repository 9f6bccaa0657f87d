"""Wrong input: one sentence that says what and the way out, exit code 2, no traceback, nothing overwritten."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import synflow
from factories import FACTORY
from synflow.cli import app, main


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["synflow", "..."])
    (tmp_path / "net.py").write_text(FACTORY)


def refused(capsys, line, code=2):
    with pytest.raises(SystemExit) as leave:
        main(line.split())
    got = capsys.readouterr()
    assert leave.value.code == code, got
    assert "Traceback" not in got.err
    if got.err.startswith("error: "):
        assert got.err.count("\n") == 1
    return got.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prune vgg61 --compression 10", "no model 'vgg61' (did you mean vgg"),
        ("prune timm:resnet5 --compression 10", "timm has no model 'resnet5' (did you mean resnet5"),
        ("prune torchvision:resnet5 --compression 10", "torchvision has no model 'resnet5'"),
        ("prune transformers:berd --compression 10", "transformers has no model type 'berd' (did you mean bert"),
        ("prune missing.py:make --compression 10", "missing.py: there is no such file"),
        ("prune net.py:fake --compression 10", "has no function 'fake'; it has make, make_conv"),
        ("prune net.py:broken --compression 10", "RuntimeError: no such luck"),
        ("prune net.py:nothing --compression 10", "returned int; a factory returns a torch.nn.Module"),
        ("prune net.py:make_conv --compression 10", "give its shape, batch first: --input"),
        ("prune net.py:make_conv --compression 10 --input 1x3x9x9", "does not run on an input of shape 1x3x9x9"),
        ("prune net.py:make --compression 10 --input 1y3", "'1y3' is no shape"),
        ("prune net.py:make --compression 10 --input 0x12", "size of zero"),
        ("prune net.py:make --compression 10 --input 1x12:int7", "no type 'int7'"),
        ("prune net.py:make", "give one target"),
        ("prune net.py:make --compression 10 --density 0.1", "got --compression and --density"),
        ("prune net.py:make --compression 0.5", "--compression is at least 1"),
        ("prune net.py:make --density 1.5", "density is the share"),
        ("prune net.py:make --keep 99999", "the network has 2,280 prunable weights"),
        ("prune net.py:make --flops 7", "--flops is the share"),
        ("prune net.py:make --compression 2000", "the maximum compression is 760"),
        ("prune net.py:make --compression 10 --score synflo", "no score 'synflo' (did you mean synflow"),
        ("prune net.py:make --compression 10 --schedule fast", "no schedule 'fast'; choose from certified, exp"),
        ("prune net.py:make --compression 10 --scope glob", "no scope 'glob' (did you mean global?)"),
        ("prune net.py:make --speedup inf", "--speedup is at least 1"),
        ("prune net.py:make --compression 10 --score snip", "reads data; name a data set"),
        ("prune net.py:make --compression 10 --score snip --data cifar11", "no data set 'cifar11'"),
        ("prune net.py:make --compression 10 --score snip --data cifar10", "--data-dir"),
        ("prune net.py:make --compression 10 --weights none.safetensors", "there is no such file"),
        ("prune net.py:make --compression 10 --protect head", "matches no parameter"),
        ("prune net.py:make --compression 10 --device abacus", "device 'abacus' cannot be used"),
        ("prune net.py:make --speedup 2 --task dreaming", "no task 'dreaming'"),
        ("inspect nowhere", "there is no such file"),
        ("compact nowhere", "there is no such folder"),
        ("compare net.py", "at least two"),
        ("inspect net.py", "is no safetensors file"),
        ("models 'nope*'", "no model matches"),
    ],
)
def test_wrong_input_gets_one_sentence(capsys, line, said):
    got = refused(capsys, line)
    assert said in got
    assert got.startswith("error: ")


def test_usage_errors_name_the_option(capsys):
    assert "--compresion" in refused(capsys, "prune fc --compresion 10")
    assert "frobnicate" in refused(capsys, "frobnicate")


def contents(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def test_nothing_is_overwritten(capsys, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("ten years of work")
    (tmp_path / "file").write_text("also precious")
    before = contents(tmp_path)
    assert "is not empty" in refused(capsys, "prune net.py:make --compression 10 --out full")
    assert "something else than a pruned network" in refused(
        capsys, "prune net.py:make --compression 10 --out full --force"
    )
    assert "is no folder" in refused(capsys, "prune net.py:make --compression 10 --out file")
    assert {path: data for path, data in contents(tmp_path).items() if path.suffix != ".pyc"} == before


def test_force_replaces_only_what_synflow_wrote(capsys):
    for options in ("", "--force"):
        with pytest.raises(SystemExit) as leave:
            main(f"prune net.py:make --compression 10 --steps 2 --out run {options}".split())
        assert leave.value.code == 0
        Path("run/notes.txt").write_text("mine")
    assert Path("run/notes.txt").read_text() == "mine"
    assert "is not empty" in refused(capsys, "prune net.py:make --compression 10 --out run")


OWN = {
    "run.json": '{"format": 1, "speed": 12}', "masks.safetensors": "mine", "weights.safetensors": "mine",
    "certificate.json": '{"name": "diploma"}', "facts.json": '{"title": "mine"}', "report.html": "<title>Mine</title>",
}  # fmt: skip


def test_files_of_the_user_under_our_names_are_named_and_stay(capsys):
    line = "prune net.py:make --compression 10 --steps 2 --out mine --force"
    Path("mine").mkdir()
    for name, text in OWN.items():
        Path("mine", name).write_text(text)
    before = contents("mine")
    got = refused(capsys, line)
    assert all(name in got for name in OWN)
    assert "were not written by synflow; move them away, or choose another folder" in got
    assert contents("mine") == before
    demo = refused(capsys, "demo --out mine --force")
    assert "is not empty" in demo
    Path("mine/results.json").write_text('{"outcomes": 3}')
    assert "results.json, report.html were not written by synflow" in refused(capsys, "demo --out mine --force")


def test_a_run_of_an_earlier_version_without_manifest_is_replaced(capsys):
    line = "prune net.py:make --compression 10 --steps 2 --out run --force"
    for _ in range(2):
        with pytest.raises(SystemExit) as leave:
            main(line.split())
        assert leave.value.code == 0
        Path("run/manifest.json").unlink()
        capsys.readouterr()
    own = {}
    for name, text in OWN.items():
        own[name] = Path("run", name).read_bytes()
        Path("run", name).write_text(text)
        got = refused(capsys, line)
        assert name in got
        assert "written by synflow" in got
        assert Path("run", name).read_text() == text
        Path("run", name).write_bytes(own[name])
    Path("run/bench.json").write_text("mine")
    with pytest.raises(SystemExit):
        main(line.split())
    assert Path("run/manifest.json").is_file()
    assert "bench.json was not written by synflow" in refused(capsys, "bench run --model net.py:make --repeats 1")
    assert Path("run/bench.json").read_text() == "mine"


def test_pickles_are_never_opened(capsys, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    (tmp_path / "old.pt").write_bytes(pickle.dumps(Bomb()))
    torch.save({"x": Bomb()}, tmp_path / "new.pt")
    for name in ("old.pt", "new.pt"):
        got = refused(capsys, f"prune net.py:make --compression 10 --weights {name}")
        assert "is a pickle" in got
        assert "save_file" in got
    refused(capsys, "inspect old.pt")
    assert not (tmp_path / "exploded").exists()


def test_weights_that_do_not_fit_are_named(capsys, tmp_path):
    (tmp_path / "noise.safetensors").write_bytes(b"\x01" * 100)
    assert "is no safetensors file, or it is damaged" in refused(
        capsys, "prune net.py:make --compression 10 --weights noise.safetensors"
    )
    save_file({"0.weight": torch.ones(40, 12)}, "few.safetensors")
    assert "lacks 0.bias and 4 more" in refused(capsys, "prune net.py:make --compression 10 --weights few.safetensors")
    namespace = {}
    exec(FACTORY, namespace)
    state = namespace["make"]().state_dict()
    save_file({**state, "4.weight": torch.ones(7, 40), "4.bias": torch.ones(7)}, "other.safetensors")
    got = refused(capsys, "prune net.py:make --compression 10 --weights other.safetensors")
    assert "4.weight has shape (7, 40), expected (5, 40)" in got
    assert "--classes" in got


def test_damaged_folders_are_told_apart(capsys):
    with pytest.raises(SystemExit):
        main("prune net.py:make --compression 10 --steps 2 --out run".split())
    whole = contents("run")
    for name, data, said in (
        ("run.json", b"{", "run.json is damaged: it is no JSON"),
        ("run.json", b"[" * 100_000, "nested too deeply"),
        ("run.json", b"[]", "holds no JSON object"),
        ("run.json", b'{"format": 99}', "has format 99"),
        ("facts.json", b'{"layers": 3}', "facts.json is damaged: title is missing, expected str"),
        ("masks.safetensors", whole[Path("run/masks.safetensors")][:-3], "masks.safetensors is damaged"),
    ):
        Path("run", name).write_bytes(data)
        assert said in refused(capsys, "inspect run")
        Path("run", name).write_bytes(whole[Path("run", name)])
    Path("run/certificate.json").write_text("{}")
    assert "certificate.json is damaged" in refused(capsys, "inspect run")


def test_debug_shows_the_traceback_and_a_bug_is_called_one(capsys, monkeypatch):
    with pytest.raises(SystemExit):
        main("--debug prune vgg61 --compression 10".split())
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setattr("synflow.cli.prune_run.load_model", lambda *_, **__: 1 / 0)
    got = refused(capsys, "prune fc --compression 10", code=70)
    assert "this is a bug in synflow: ZeroDivisionError" in got
    assert "--debug" in got


def test_an_unwritable_place_is_told(capsys, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("synflow.cli.runs.save_masks", full)
    assert "No space left on device" in refused(capsys, "prune net.py:make --compression 10 --steps 2 --out run")
    assert not [path for path in tmp_path.iterdir() if "run" in path.name]


SLOW = """
from pathlib import Path
from torch import nn
from synflow.models.built_in import build

calls = []

class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = build("resnet56")

    def forward(self, x):
        calls.append(len(calls))
        if len(calls) == 2:  # later steps repeat what was recorded, and call nobody
            Path("started").touch()
        return self.network(x)
"""


def test_stopped_by_ctrl_c_leaves_nothing_behind(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    command = "-m synflow prune slow.py:Watched --input 1x3x32x32 --compression 100 --steps 5000 --out run"
    process = subprocess.Popen(
        [sys.executable, *command.split()], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(Path(synflow.__file__).parents[1])},
    )  # fmt: skip
    while not (tmp_path / "started").exists() and process.poll() is None:
        time.sleep(0.1)
    time.sleep(2)  # from the model's first run to the first step; all of them take minutes
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert re.fullmatch(r"stopped after \d+ of 5000 steps, at density [\d.]+; nothing was written\n", errors), errors
    assert not [path for path in tmp_path.iterdir() if "run" in path.name]


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(synflow.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "synflow", "models", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=tmp_path, env=environment,
    )  # fmt: skip
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


def test_exit_codes_are_documented():
    codes = {int(code) for code in re.findall(r"\b(\d+) ", app.EPILOG)}
    assert codes == {0, 1, 2, 70, 130}


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_without_the_extra_the_command_names_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as leave:
        main(["doctor"])
    assert str(leave.value.code) == f"error: this needs {name!r}; install it with: pip install 'synflow[cli]'"


def test_model_sources_are_built_by_name():
    from synflow.models.sources import load_model

    for spec, options in (
        ("timm:test_resnet", {}),
        ("torchvision:squeezenet1_1", {"inputs": ["1x3x64x64"], "classes": 7}),
        ("fc", {"inputs": ["1x1x8x8"], "classes": 3}),
    ):
        library = spec.partition(":")[0]
        if ":" in spec:
            pytest.importorskip("timm" if library == "torchvision" else library)
        source = load_model(spec, **options)
        with torch.no_grad():
            out = source.model.eval()(source.example)
        assert out.shape == (1, options.get("classes", out.shape[1]))
        again = load_model(spec, inputs=source.settings["input"], classes=source.classes)
        assert all(torch.equal(a, b) for a, b in zip(source.model.parameters(), again.model.parameters(), strict=True))


def test_transformers_are_built_from_a_config(tmp_path):
    transformers = pytest.importorskip("transformers")
    from synflow.models.sources import load_model

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        architectures=["BertForMaskedLM"],
    )  # fmt: skip
    config.save_pretrained(tmp_path / "tiny")
    source = load_model(f"transformers:{tmp_path / 'tiny'}")
    assert type(source.model).__name__ == "BertForMaskedLM"
    assert source.settings["input"] == ["input_ids=1x8:int64"]
    vit = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
    )
    vit.save_pretrained(tmp_path / "vit")
    source = load_model(f"transformers:{tmp_path / 'vit' / 'config.json'}")
    assert source.settings["input"] == ["pixel_values=1x3x32x32"]
