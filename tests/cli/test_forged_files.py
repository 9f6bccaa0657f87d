"""Folders that others wrote: whatever stands in their JSON files, commands refuse them in one sentence or read them."""

import json
import random
import resource
from pathlib import Path

import pytest

from factories import FACTORY
from synflow.cli import main
from synflow.cli.output import layer_table
from synflow.cli.runs import open_run, refresh_report
from synflow.errors import SynflowError
from synflow.models.inputs import example_from

FORGERIES = (None, True, -1, 0, 10**30, 1e300, "", "x" * 10, "../../etc", [], [1], {}, {"a": 1}, [[[]]])


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["synflow", "..."])
    (tmp_path / "net.py").write_text(FACTORY)
    assert called("prune net.py:make --compression 10 --steps 3 --out run", capsys)[0] == 0
    assert called("compact run --model net.py:make", capsys)[0] == 0
    (tmp_path / "run" / "manifest.json").unlink()  # a forger leaves out the checksums, as old versions did
    return tmp_path / "run"


def called(line, capsys):
    with pytest.raises(SystemExit) as leave:
        main(line.split())
    return leave.value.code, capsys.readouterr().err


def places(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def changed(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("name", ["run.json", "facts.json", "certificate.json"])
def test_forged_values_are_refused_or_read(folder, name, capsys):
    whole = json.loads((folder / name).read_text())
    dice = random.Random(name)
    everywhere = sorted(places(whole), key=str)
    for _ in range(150):
        place, value = dice.choice(everywhere), dice.choice(FORGERIES)
        (folder / name).write_text(json.dumps(changed(whole, place, value)))
        try:
            run = open_run(folder)
            run.masks()
            layer_table(run.facts().layers)
            refresh_report(run, run.facts())
        except SynflowError:
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {value!r} at {place}") from error
    assert called("inspect run --json", capsys)[0] in (0, 2)
    assert called("compact run --model net.py:make --force", capsys)[0] in (0, 2)


def test_deeply_nested_files_are_refused(folder, capsys):
    for name in ("run.json", "facts.json", "certificate.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(b'{"format": ' + b"[" * 200_000)
        code, said = called("inspect run", capsys)
        assert (code, "nested too deeply" in said) == (2, True)
        (folder / name).write_bytes(whole)


def test_an_example_does_not_fill_memory(folder, capsys):
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "input": ["100000x100000x100000"]}))
    code, said = called("certify run --model net.py:make", capsys)
    assert (code, "asks for 1,000,000,000,000,000 numbers" in said) == (2, True)
    with pytest.raises(SynflowError, match="a batch of one is enough"):
        example_from(["99999x99999:int64"])


@pytest.mark.parametrize("name", ["Trainer", "TrainingArguments", "AutoTokenizer", "pipeline", "logging"])
def test_a_config_of_transformers_calls_model_classes_only(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    from synflow.models.sources import load_model

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        architectures=[name],
    )  # fmt: skip
    config.save_pretrained(tmp_path / "tiny")
    with pytest.raises(SynflowError, match=f"{name}', which is no model class of transformers"):
        load_model(f"transformers:{tmp_path / 'tiny'}")


def test_a_full_disk_is_one_sentence(folder, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(Path, "write_bytes", full)
    for command in ("certify run --model net.py:make --write", "compact run --model net.py:make --force"):
        code, said = called(command, capsys)
        assert code == 2, said
        assert "No space left on device" in said
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        ({"input": ["1x" + "9" * 5000]}, "is no shape"),
        ({"input": ["1x1x32768x32768"]}, "its input has more than"),
        ({"input": ["1x2"] * 101}, "it names 101 inputs"),
        ({"input": ["1x1x4096x4096"]}, "1.weight has shape (100, 64), expected (100, 16777216)"),
        ({"seed": 10**30}, "a seed is below"),
    ],
)
def test_a_stored_network_cannot_ask_for_much_memory(tmp_path, monkeypatch, capsys, forged, said):
    """Shapes are compared with the stored weights before any memory is taken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["synflow", "..."])
    assert called("prune fc --input 1x1x8x8 --compression 5 --steps 2 --out run", capsys)[0] == 0
    (tmp_path / "run" / "manifest.json").unlink()
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **forged}))
    limit = 4 << 30  # bytes of address space beside what torch has now
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, before[1]))
    try:
        code, err = called("certify run", capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert code == 2, err
    assert said in err
    assert len(err) < 400
