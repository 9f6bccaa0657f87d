"""The zoo's page: rows as they are done, failures with their reason, runs that go on where one stopped."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tool():
    """tools/zoo.py as a module, under another name than the tests' own zoo."""
    sys.path.append(str(TOOLS))
    spec = importlib.util.spec_from_file_location("zoo_tool", TOOLS / "zoo.py")
    module = sys.modules["zoo_tool"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(TOOLS))


@pytest.fixture
def run(tool, tmp_path, capsys):
    def call(*options):
        page, log = tmp_path / "zoo.md", tmp_path / "rows.jsonl"
        assert tool.main(["--out", str(page), "--log", str(log), "--steps", "4", *options]) == 0
        assert not capsys.readouterr().out
        return page.read_text(), [json.loads(line) for line in log.read_text().splitlines()]

    return call


def test_page_has_a_row_per_architecture_and_resumes(run, tmp_path):
    page, rows = run("--only", "RNN")
    assert "- **`balanced`: 1 of 1 architectures pruned** · exact count in 1 · connected 1" in page
    assert "dead: 0 of 5 layers at 10x, 0 of 5 layers at 100x" in page
    assert "| RNN | 5 | 22,720 | 2,272 | 227 | yes | – | 0 / 0 |" in page
    failure = {**rows[0], "name": "U-Net", "error": "SynflowError: no rule"}
    with (tmp_path / "rows.jsonl").open("a") as log:
        log.write(json.dumps(failure) + "\n")
    page, rows = run("--only", "RNN", "U-Net", "--resume")
    assert [(row["name"], bool(row["error"])) for row in rows] == [("RNN", False), ("U-Net", True), ("U-Net", False)]
    assert "**`balanced`: 2 of 2 architectures pruned**" in page
    assert "Failures" not in page


class Routed(nn.Module):
    """A network with an operation that has no rule."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(20, 20)

    def forward(self, x):
        return torch.linalg.qr(self.layer(x))[0]


def test_failure_is_listed_with_its_reason(tool):
    row = tool.examine("routed", lambda: (Routed(), torch.ones(1, 20)), steps=2)
    assert row.error.startswith("NoRuleError: no rule for the operation 'linalg_qr'")
    assert "\n" not in row.error
    page = tool.table({("routed", "balanced"): row}, steps=2)
    assert "**`balanced`: 0 of 1 architectures pruned**" in page
    assert f"| routed | balanced | {row.error} |" in page


def test_rows_of_older_code_are_marked(tool):
    def row(name, score, code):
        return tool.Row(name, score, 100, 3, (10, 1), True, True, (None if code == "" else 0, 1), code=code)

    rows = [row("RNN", "balanced", "abc1234"), row("RNN", "synflow", ""), row("U-Net", "balanced", "abc1234")]
    page = tool.table({(r.name, r.score): r for r in rows}, steps=2)
    assert "these commits: abc1234 (2 results). An asterisk marks the other 1 results" in page
    assert "| RNN | 3 | 100 | 10 | 1 | yes | – / 1* | 0 / 1 |" in page
    assert "| U-Net | 3 | 100 | 10 | 1 | yes | – | 0 / 1 |" in page


def test_rows_know_the_state_of_the_code(tool):
    assert len(tool.code_state().rstrip("+")) >= 7


def test_what_takes_too_long_is_stopped_and_listed(tool):
    def build():
        while True:
            torch.ones(100).sum()

    row = tool.examine("slow", build, steps=2, limit=1)
    assert row.error == "OutOfTime: not done within 1 seconds of processor time"


def test_every_architecture_has_a_name_of_its_own(tool):
    names = [name for entries in tool.ENTRIES.values() for name in entries]
    assert len(names) == len(set(names)) > 150
