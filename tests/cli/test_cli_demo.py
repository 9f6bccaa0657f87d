"""The demonstration, small: all methods run, the table and the report are there, nothing is overwritten."""

import json
import re

import pytest

from synflow.cli import main

pytest.importorskip("sklearn")
SMALL = "demo --out demo --width 4 --epochs 3 --compression 5 --compression 200"


def test_the_demo_ends_in_a_table_and_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["synflow", *SMALL.split()])
    with pytest.raises(SystemExit) as leave:
        main(SMALL.split())
    shown = capsys.readouterr()
    assert leave.value.code == 0, shown.err
    assert max(map(len, shown.out.splitlines())) <= 80
    for method in ("random", "magnitude", "snip", "grasp", "synflow"):
        assert re.search(rf"^{method} +[\d.]+%", shown.out, flags=re.M)
    assert re.search(r"^random .* x$", shown.out, flags=re.M), "random weights leave no path at 200x"
    assert re.search(r"^synflow .*%$", shown.out, flags=re.M), "SynFlow does"
    for network in ("dense", "masked", "compact"):
        assert re.search(rf"^{network} +[\d.]+% ", shown.out, flags=re.M)
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert len(results["outcomes"]) == 10
    masked, compact = results["variants"][1:]
    assert masked["weights"] == compact["weights"]
    assert compact["parameters"] < masked["parameters"]
    assert abs(masked["accuracy"] - compact["accuracy"]) < 3, "the same training, up to rounding"
    html = (tmp_path / "demo" / "report.html").read_text()
    assert "When does a network collapse?" in html
    assert html.count("<svg") == 3
    with pytest.raises(SystemExit) as leave:
        main(SMALL.split())
    assert leave.value.code == 2
    assert "is not empty" in capsys.readouterr().err
