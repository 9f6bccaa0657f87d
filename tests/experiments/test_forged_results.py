"""Results that others wrote: figures are drawn from them, or the file, the row and the field are named."""

import csv
import json

import pytest

from synflow.cli.app import run
from synflow.errors import SynflowError
from synflow.experiments.paper import configs_of, draw, redraw
from synflow.experiments.results import collect, write_table
from synflow.experiments.runs import execute, folder_of
from synflow.experiments.sealed_json import write_json
from synflow.experiments.tables import read_tables

NONSENSE = ("many", "NaN", "Infinity", "-1", "1e300", "9" * 400, "[[1]]", "[" * 5000, '{"a": 1}', "True")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for config in (configs_of("past", "smoke")[0], configs_of("fig10", "smoke")[0], configs_of("fig5b", "smoke")[0]):
        execute(config, root)
    return root


@pytest.fixture
def table(runs, tmp_path):
    """The rows of an exported table, and a function that writes them with other values in the row of the training."""
    write_table(collect(runs)[0], tmp_path / "runs.csv")
    with open(tmp_path / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    place = next(index for index, row in enumerate(rows) if row["task"] == "train")

    def forge(**changes):
        made = [{**row, **(changes if index == place else {})} for index, row in enumerate(rows)]
        kept = [name for name in rows[0] if changes.get(name, "") is not None]
        with open(tmp_path / "runs.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, kept, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(made)
        return f"{tmp_path / 'runs.csv'}, line {place + 2}"

    return forge


@pytest.mark.parametrize("field", ["top1", "kept", "flops", "parameters", "train_seconds", "seconds", "threads"])
def test_forged_cells_of_a_table_are_named(table, field, tmp_path):
    for value in (*NONSENSE, "", None):
        where = table(**{field: value}) if value is not None else table(**{field: None}).rpartition(" ")[0]
        with pytest.raises(SynflowError) as error:
            read_tables(tmp_path)
        part = "about" if field in ("seconds", "threads") else "outcome"
        assert str(error.value).startswith(where), value
        assert f" is damaged: {part}.{field} is " in str(error.value), value
        assert len(str(error.value)) < 400


def test_the_command_refuses_a_forged_table_in_one_sentence(table, tmp_path, capsys):
    where = table(top1="many")
    assert run(["paper", "draw", "past", "--from", str(tmp_path), "--out", str(tmp_path / "figures")]) == 2
    said = capsys.readouterr().err
    assert f"{where} is damaged: outcome.top1 is 'many', expected a number from 0 to 100" in " ".join(said.split())
    assert "Traceback" not in said


def test_a_table_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "runs.csv").write_bytes(b"run,method\n\xff\xfe,1\n")
    with pytest.raises(SynflowError, match=r"runs\.csv cannot be read as a table"):
        read_tables(tmp_path)


def test_runs_of_every_task_come_back_from_a_table(table, tmp_path):
    table()
    assert {name.partition("-")[0] for name in read_tables(tmp_path)} == {"train", "ratios", "magnitudes"}
    assert list(redraw(tmp_path, tmp_path / "figures", ["fig5b"])) == ["fig5b"]
    with pytest.raises(SynflowError, match="holds no runs of fig3 in its tables, .* draw from the folder of the runs"):
        redraw(tmp_path, tmp_path / "figures", ["fig3"])


@pytest.mark.parametrize(
    ("figure", "changes", "said"),
    [
        ("past", {"top1": "many"}, "outcome.top1 is 'many', expected a number from 0 to 100"),
        ("past", {"kept": float("nan")}, "outcome.kept is nan, expected a number"),
        ("past", {"flops": [[1]]}, r"outcome.flops is \[\[1\]\], expected a whole number"),
        ("past", {"parameters": 10**400}, "outcome.parameters is 1000"),
        ("fig10", {"largest": None}, "outcome.largest is None"),
        ("fig10", {"alive": 1}, "outcome.alive is 1, expected bool"),
        ("fig5b", {"sizes": {"0": "x"}}, "outcome.sizes.0 is 'x', expected a whole number from 1"),
        ("fig5b", {"mean_square": [[1]]}, r"outcome.mean_square\[0\] is \[1\], expected an object"),
        ("fig5b", {"mean_square": [{"a": 1}]}, "fig5b: the results in .* do not fit together"),
    ],
)
def test_forged_results_are_named(runs, tmp_path, figure, changes, said):
    config = configs_of(figure, "smoke")[0]
    content = json.loads((folder_of(config, runs) / "result.json").read_text())
    content["outcome"] |= changes
    write_json(folder_of(config, tmp_path) / "result.json", content)  # with the right checksum
    with pytest.raises(SynflowError, match=said) as error:
        draw(figure, "smoke", tmp_path, tmp_path / "figures")
    assert "result.json is damaged" in str(error.value) or "do not fit together" in str(error.value)


def test_missing_fields_are_named(runs, tmp_path):
    config = configs_of("past", "smoke")[0]
    content = json.loads((folder_of(config, runs) / "result.json").read_text())
    del content["outcome"]["kept"]
    write_json(folder_of(config, tmp_path) / "result.json", content)
    with pytest.raises(SynflowError, match=r"result\.json is damaged: outcome\.kept is missing"):
        draw("past", "smoke", tmp_path, tmp_path / "figures")
