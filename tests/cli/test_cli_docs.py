"""The commands that README and documentation show run as shown, in order, page by page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import synflow
from synflow.cli import main
from synflow.experiments.tables import read_tables

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
    if "```console\n" in page.read_text()
]
# Commands that set things up rather than use synflow.
OTHERS = {"pip", "make", "git", "cd"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_run_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["synflow", "..."])
    for language, title, text in BLOCK.findall(page.read_text()):
        if title:
            Path(title).write_text(text)
        if language != "console":
            continue
        commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        assert commands, f"{page.name}: a console block starts its commands with $"
        for command in commands:
            program, *words = shlex.split(command)
            if program in OTHERS:
                continue
            if program == "python":
                done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
                assert done.returncode == 0, f"{command}: {done.stderr}"
                continue
            assert program == "synflow", command
            with pytest.raises(SystemExit) as leave:
                main(words)
            assert leave.value.code == 0, f"{command}: {capsys.readouterr().err}"


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs" / "reference.md").read_text()
    shown = set(re.findall(r"^::: synflow\.(?:reporting\.)?(\w+)", text, flags=re.M))
    named = set(re.findall(r"`synflow\.(\w+)`", text))
    missing = [name for name in synflow.__all__ if name not in shown | named and not name.startswith("__")]
    assert not missing


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path / "site"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    site = tmp_path / "site"
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.glob("**/*.html")}
    assert len(pages) >= 12
    results = read_tables(ROOT / "docs" / "results" / "data").values()
    with_accuracy = [result for result in results if result["outcome"].get("top1") is not None]
    assert f"{len(with_accuracy)} runs" in pages["results/runs.html"]
    for name, html in pages.items():
        if name == "404.html":
            continue
        for link in re.findall(r'(?:href|src)="([^"#?]+)', html):
            if re.match(r"[a-z]+:", link):
                assert not link.startswith("http:"), f"{name}: {link}"
                continue
            assert (site / name).parent.joinpath(link).resolve().exists(), f"{name}: {link} leads nowhere"
