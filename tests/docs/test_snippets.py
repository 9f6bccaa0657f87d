"""Every snippet of README and docs runs as shown, every docstring example holds."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import synflow
from synflow.flow import dispatch

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_SNIPPETS = [page for page in PAGES if BLOCK.search(page.read_text())]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(synflow.__path__, "synflow.")
    if not module.name.rsplit(".", 1)[-1].startswith("__main__")
]


@pytest.fixture(autouse=True)
def _tables_as_found(monkeypatch):
    """Snippets put rows into the tables of scores and rules, which other tests of the same process read."""
    monkeypatch.setattr(dispatch, "_USER_RULES", dict(dispatch._USER_RULES))
    before = dict(synflow.SCORES)
    yield
    synflow.SCORES.clear()
    synflow.SCORES.update(before)


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
        exec(compile(block, f"{page.name}, snippet {number}", "exec"), namespace)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_hold(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0


def test_public_names_are_sorted_and_there():
    names = synflow.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(synflow, name) for name in names)
    assert all(getattr(synflow, name).__doc__ for name in names if callable(getattr(synflow, name)))


def test_every_public_function_has_an_example_that_runs():
    shown = "\n".join(block for page in PAGES for block in BLOCK.findall(page.read_text()))
    functions = [name for name in synflow.__all__ if inspect.isfunction(getattr(synflow, name))]
    assert len(functions) > 20
    for name in functions:
        here = ">>>" in getattr(synflow, name).__doc__
        assert here or re.search(rf"\b(?:synflow\.)?{name}\(", shown), f"{name} has no example"
