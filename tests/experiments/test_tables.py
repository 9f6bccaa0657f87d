"""Exported tables give the figures back without training; the page of all runs works in a browser."""

import json
import shlex

import pytest

from browser import chromium, show
from synflow.cli.app import run
from synflow.errors import SynflowError
from synflow.experiments import results, tables
from synflow.experiments.configs import Config, configured, from_dict, identity
from synflow.experiments.figures.sceptic import front
from synflow.experiments.figures.uncertainty import interval
from synflow.experiments.outcomes import form_of
from synflow.experiments.paper import _seconds, configs_of, draw, redraw
from synflow.experiments.results_page import page_of
from synflow.experiments.runs import execute


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four short runs in a folder."""
    root = tmp_path_factory.mktemp("runs")
    for config in configs_of("past", "smoke") + configs_of("sceptic", "smoke")[:2]:
        execute(config, root)
    return root


def test_a_table_holds_what_figures_need(runs, tmp_path):
    rows, problems = results.collect(runs)
    assert not problems
    results.write_table(rows, tmp_path / "data" / "runs.csv")
    read = tables.read_tables(tmp_path / "data")
    assert set(read) == {row["run"] for row in rows}
    for name, result in read.items():
        assert identity(from_dict(result["config"])) == name
        stored = json.loads((runs / name / "result.json").read_text())
        assert result["config"] == stored["config"]
        for key in ("top1", "kept", "parameters", "flops", "train_seconds", "epochs"):
            assert result["outcome"][key] == stored["outcome"][key]
    again, problems = results.collect(tmp_path / "data")
    assert not problems
    by_name = {row["run"]: row for row in rows}
    assert {row["run"]: row["top1"] for row in again} == {name: row["top1"] for name, row in by_name.items()}
    assert all(row["command"] == by_name[row["run"]]["command"] for row in again)
    made = redraw(tmp_path / "data", tmp_path / "figures", ["past", "sceptic", "fig5a"])
    assert list(made) == ["past", "sceptic"]
    page = (tmp_path / "figures" / "past.md").read_text()
    assert "smoke scale" in page
    with open(tmp_path / "figures" / "past.md", "a") as file:
        file.write("\n## In words\n\nIt works.\n")
    redraw(tmp_path / "data", tmp_path / "figures", ["past"])
    assert (tmp_path / "figures" / "past.md").read_text() == page + "\n## In words\n\nIt works.\n"
    assert "±" in page
    assert list(redraw(tmp_path / "data", tmp_path / "figures", ["past"], scale="smoke")) == ["past"]
    with pytest.raises(SynflowError, match="no runs of past at laptop scale"):
        redraw(tmp_path / "data", tmp_path / "figures", ["past"], scale="laptop")
    with pytest.raises(SynflowError, match="no scale 'papre'"):
        redraw(tmp_path / "data", tmp_path / "figures", ["past"], scale="papre")


def test_the_time_of_a_resumed_run_holds_the_epochs_before_the_interrupt():
    def took(seconds, **outcome):
        return _seconds({"about": {"seconds": seconds}, "outcome": outcome})

    assert (took(5.0), took(5.0, train_seconds=3.0), took(3.6, train_seconds=23.7)) == (5.0, 5.0, 23.7)


@pytest.mark.parametrize("name", ["batch_norm", "fig3", "fig5b", "timing"])
def test_figures_of_lists_and_tables_are_redrawn_from_a_table(name, tmp_path):
    for config in configs_of(name, "smoke"):
        execute(config, tmp_path / "runs")
    rows, problems = results.collect(tmp_path / "runs")
    assert not problems
    results.write_table(rows, tmp_path / "data" / "runs.csv")
    # Run folders keep lists that no figure needs (learning curves); what figures need comes back as it was.
    for run_name, result in tables.read_tables(tmp_path / "data").items():
        stored = json.loads((tmp_path / "runs" / run_name / "result.json").read_text())["outcome"]
        needed = form_of(from_dict(result["config"]), stored)
        assert {key: result["outcome"][key] for key in needed} == {key: stored[key] for key in needed}
    drawn = draw(name, "smoke", tmp_path / "runs", tmp_path / "one")
    again = redraw(tmp_path / "data", tmp_path / "two", [name])[name]
    assert again.table == drawn.table


def test_a_figure_with_other_settings_is_redrawn_from_a_table_by_the_same_settings(tmp_path):
    settings = {"compression": 5.0}
    for config in configs_of("batch_norm", "smoke", settings):
        execute(config, tmp_path / "runs")
    rows, _ = results.collect(tmp_path / "runs")
    results.write_table(rows, tmp_path / "data" / "runs.csv")
    page = redraw(tmp_path / "data", tmp_path, ["batch_norm"], settings=settings)["batch_norm"].paths[-1].read_text()
    assert "with compression=5.0" in page
    assert "--set compression=5.0" in page
    with pytest.raises(SynflowError, match="holds no runs of batch_norm"):
        redraw(tmp_path / "data", tmp_path, ["batch_norm"])


def test_details_that_are_no_details_are_refused(tmp_path):
    config = configs_of("fig5b", "smoke")[0]
    execute(config, tmp_path / "runs")
    rows, _ = results.collect(tmp_path / "runs")
    for bad in ("[1, 2]", "{}", "nonsense", "[" * 100_000):
        results.write_table([{**rows[0], "details": bad}], tmp_path / "data" / "runs.csv")
        with pytest.raises(SynflowError, match=r"runs\.csv, line 2"):
            tables.read_tables(tmp_path / "data")


def test_a_row_that_is_no_result_is_named(tmp_path):
    (tmp_path / "runs.csv").write_text("run,method\nx,nonsense\n")
    with pytest.raises(SynflowError, match=r"runs\.csv, line 2 is no result: no method 'nonsense'"):
        tables.read_tables(tmp_path)
    rows, problems = results.collect(tmp_path)
    assert (rows, len(problems)) == ([], 1)
    assert "line 2 is no result" in problems[0]
    with pytest.raises(SynflowError, match="holds no table of results"):
        redraw(tmp_path / "none", tmp_path, ["past"])


def test_the_command_of_a_run_makes_the_same_run(capsys):
    config = configured(Config(), compression=100.0, drops=(60, 120), lr_factor=3.0, scope="erk", method="random")
    words = shlex.split(tables.command_of(config))
    assert run([*words[1:], "--dry-run"]) == 0
    assert identity(config) in capsys.readouterr().out


def test_command_line(runs, tmp_path, capsys):
    assert run(["results", "--runs", str(runs), "--out", str(tmp_path / "runs.csv")]) == 0
    assert run(["paper", "--from", str(tmp_path), "--out", str(tmp_path / "figures")]) == 0
    assert (tmp_path / "figures" / "sceptic.png").exists()
    assert run(["results", "--runs", str(runs), "--html", str(tmp_path / "page.html")]) == 0
    assert "4 runs on" in capsys.readouterr().out


def test_uncertainty_and_fronts():
    def one(top1):
        return {"outcome": {"top1": top1}, "config": {"dataset": data, "test_per_class": None}}

    data = "digits"
    assert interval([one(77.0)]) == "77.0 ± 4.3"  # 360 test images
    data = "cifar10"
    assert interval([one(77.0)]) == "77.0 ± 0.8"
    assert interval([one(76.0), one(78.0)]) == "77.0 (76.0 to 78.0, 2 seeds)"
    assert front([(3, 60), (1, 50), (1, 49), (2, 40)]) == [(1, 50), (3, 60)]


def made_up(method, compression, top1, **rest):
    return {
        "run": f"{method}-{compression}", "model": "vgg11_bn", "dataset": "cifar10", "method": method, "seed": 0,
        "compression": compression, "width": 1.0, "top1": top1, "kept": 9_000_000 / compression, "total": 9_000_000,
        "flops": 1e6, "parameters": 40_000, "train_seconds": 50.0, "epochs": 160, "command": "synflow sweep </script>",
        **rest,
    }  # fmt: skip


def test_the_page_in_a_browser(tmp_path):
    rows = [made_up("synflow", 1000.0, 77.0), made_up("synflow", 100.0, 85.0), made_up("magnitude", 1000.0, 10.0)]
    path = tmp_path / "page.html"
    path.write_text(page_of([*rows, {"run": "no accuracy"}]), encoding="utf-8")
    with chromium() as opened:
        assert show(opened, path) == []

        def count(kind):
            return len(opened.find_elements("css selector", f"circle.{kind}"))

        def choose(name, value):
            opened.execute_script(
                "const menu = document.forms[0].elements[arguments[0]]; menu.value = arguments[1];"
                "menu.dispatchEvent(new Event('change'))", name, value,
            )  # fmt: skip

        assert "3 runs, 1 without an accuracy" in opened.find_element("css selector", "p").text
        assert (count("run"), count("ghost")) == (3, 65)
        choose("method", "synflow")
        assert (count("run"), count("ghost")) == (2, 13)
        choose("compression", "1000")
        assert (count("run"), count("ghost")) == (1, 1)
        choose("axis", "flops")
        assert (count("run"), count("ghost")) == (1, 0)
        from selenium.webdriver import ActionChains

        ActionChains(opened).move_to_element(opened.find_element("css selector", "circle.run")).perform()
        told = opened.find_element("id", "about").text
        assert "77.00 ± 0.82 %" in told
        assert "synflow sweep </script>" in told
        assert not [line for line in opened.get_log("browser") if line["level"] == "SEVERE"]


def test_the_page_on_a_phone_and_with_a_single_run(tmp_path):
    rows = [made_up(name, 1000.0, 50.0) for name in ("synflow", "magnitude", "snip", "grasp", "random", "balanced")]
    many, single = tmp_path / "many.html", tmp_path / "single.html"
    many.write_text(page_of([*rows, made_up("dense", 1.0, 60.0, kept=None)]), encoding="utf-8")
    single.write_text(page_of(rows[:1]), encoding="utf-8")
    with chromium() as opened:
        show(opened, many, width=375)
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 375
        height = opened.execute_script("return document.querySelector('#plot text').getBoundingClientRect().height")
        assert height > 10  # pixels: text is not shrunk with the drawing
        said = opened.find_element("id", "count").text
        assert said == "6 of 7 runs, 65 published means; 1 chosen run has no weights on record"
        show(opened, single)
        assert "1 run." in opened.find_element("css selector", "p").text
        # The name of each axis, and at least two numbers on both.
        assert len(opened.find_elements("css selector", "#plot text")) >= 6
