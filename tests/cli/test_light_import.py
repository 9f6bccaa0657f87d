"""`import synflow` and `synflow --help` come without torch; every public name is found when it is asked for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import synflow

SOURCE = Path(synflow.__file__)


@pytest.mark.parametrize(
    "statement",
    [
        "import synflow",
        "from synflow.cli import main; main(['--help'])",
        "from synflow.cli import main; main(['prune', '--help'])",
        "from synflow.cli import main; main(['sweep', '--help'])",
        "from synflow.cli import main; main(['--version'])",
    ],
)
def test_nothing_heavy_is_imported(statement):
    program = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {statement}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=SOURCE.parents[1]
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_type_checkers_and_python_are_told_the_same():
    tree = ast.parse(SOURCE.read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported.pop("rules") is None
    assert imported == synflow._HOME_OF
    assert set(synflow.__all__) == {*imported, "MissingExtraError", "SynflowError", "__version__", "rules"}


def test_every_public_name_is_there():
    assert all(getattr(synflow, name) is not None for name in synflow.__all__)
    assert set(synflow.__all__) <= set(dir(synflow))
    assert synflow.experiments.__name__ == "synflow.experiments"
    with pytest.raises(AttributeError, match="no attribute 'prone'"):
        _ = synflow.prone


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("synflow.theory", "conservation"),
        ("synflow.benchmark_results", "Benchmark"),
        ("synflow.gradients", "loss_gradients"),
        ("synflow.rules", "identity"),
        ("synflow.experiments.models", "build"),
    ],
)
def test_documented_paths_of_earlier_versions_stay(path, name):
    assert getattr(__import__(path, fromlist=[name]), name)
