"""Release habits: one version, a changelog that knows it, types shipped, a light import."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import synflow

tomllib = pytest.importorskip("tomllib")  # Python 3.11 and later
ROOT = Path(__file__).parents[2]


def test_the_version_comes_from_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/synflow/_version.py"
    assert importlib.metadata.version("synflow") == synflow.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", synflow.__version__)
    assert f"version: {synflow.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_the_changelog_starts_with_this_version_and_goes_back_in_time():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\d+\.\d+\.\d+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", text, re.M)
    assert versions[0] == synflow.__version__
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert numbers == sorted(numbers, reverse=True)
    assert len(re.findall(r"^## ", text, re.M)) == len(versions)


def test_types_and_the_files_of_the_report_are_shipped():
    package = Path(synflow.__file__).parent
    assert (package / "py.typed").is_file()
    assert (package / "reporting" / "style.css").is_file()
    assert (package / "reporting" / "script.js").is_file()


def test_import_brings_only_what_the_core_needs():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, synflow; print(*sorted({name.split('.')[0] for name in sys.modules}))"],
        capture_output=True, text=True, check=True, cwd=Path(synflow.__file__).parents[1],
    )  # fmt: skip
    heavy = "typer rich click matplotlib torchvision timm transformers sklearn onnx onnxruntime ray PIL yaml"
    assert not set(heavy.split()) & set(done.stdout.split())


@pytest.mark.parametrize("extra", ["cli", "docs", "vision", "hf", "onnx", "plots", "experiments", "dev"])
def test_extras_that_errors_and_pages_name_exist(extra):
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_extra_named_in_the_code_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in (ROOT / "src").glob("**/*.py"):
        for name in re.findall(r'extra="(\w+)"', path.read_text()):
            assert name in extras, f"{path.name} names the extra {name!r}"
