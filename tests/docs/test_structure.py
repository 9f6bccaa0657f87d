"""The shape of the package: what lies in its root, that imports have no cycles, that documented module paths stay."""

import ast
import graphlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import synflow

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "synflow"

# The one import that closes a cycle: a run looks up its task by name, inside of a function, and tasks are given runs.
CLOSES_A_CYCLE = {("synflow.experiments.runs", "synflow.experiments.tasks")}

# Paths that pages or examples named in earlier versions; programs that use them must go on working.
DOCUMENTED_BEFORE = """
    synflow.errors synflow.rules.identity synflow.rules.homogeneous synflow.rules.product
    synflow.theory.Conservation synflow.theory.conservation synflow.benchmark_results.Benchmark
    synflow.scores.SCORES synflow.schedules.SCHEDULES synflow.schedules.exponential
    synflow.gradients.loss_gradients synflow.gradients.masked_weights
    synflow.reporting.report synflow.reporting.Report
    synflow.experiments.models.MODELS synflow.experiments.models.build
    synflow.experiments.configs.Config synflow.experiments.configs.configured
    synflow.experiments.sweeps.Place synflow.experiments.sweeps.grid synflow.experiments.sweeps.run_sweep
    synflow.experiments.results.collect synflow.experiments.recipes.Recipe
    synflow.experiments.data.load synflow.experiments.data.normalise synflow.experiments.training
""".split()


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(known: dict[str, Path]) -> dict[str, set[str]]:
    """The modules that each module names in an import statement, wherever in the file that stands."""
    edges = {}
    for module, path in known.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        named = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                named |= {
                    f"{source}.{alias.name}" if f"{source}.{alias.name}" in known else source for alias in node.names
                }
        edges[module] = named & set(known)
    return edges


def private_names(source: str) -> set[str]:
    """The names of torch with an underscore in front that a module imports or reads off torch's own modules."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(re.sub(r"^nn\.", "torch.nn.", ast.unparse(node)))
    return {name for name in found if re.match(r"torch(\.\w+)*\._(?!_)\w+$", name) and "\n" not in name}


def test_private_names_of_torch_are_imported_from_one_module():
    for module, path in modules().items():
        if module != "synflow.support.private_torch":
            assert not private_names(path.read_text()), f"{module}: see support/private_torch.py"
    assert "torch._C" in private_names("import torch\nwith torch._C.DisableTorchFunction():\n    pass")
    assert private_names("from torch.utils import _pytree as pytree") == {"torch.utils._pytree"}


def test_the_root_holds_only_packages_and_four_modules():
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert entries - packages == {"__init__.py", "__main__.py", "_version.py", "errors.py", "py.typed"}


def test_no_module_imports_itself_over_others():
    edges = imports(modules())
    for module, source in CLOSES_A_CYCLE:
        edges[module].discard(source)
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        pytest.fail("a cycle of imports: " + " -> ".join(reversed(error.args[1])))


def test_commands_know_the_experiments_and_not_the_other_way_round():
    for module, named in imports(modules()).items():
        room = module.split(".")[1] if "." in module else ""
        rooms = {name.split(".")[1] for name in named if "." in name}
        if room not in ("cli", "__main__"):
            assert "cli" not in rooms, f"{module} imports the command line"
        if room not in ("cli", "experiments"):
            assert "experiments" not in rooms, f"{module} imports the experiments"
        if room not in ("cli", "experiments", "models"):
            assert "models" not in rooms, f"{module} imports the models by name"


def test_the_rooms_lie_in_layers():
    pytest.importorskip("importlinter")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def paths_in_the_pages() -> set[str]:
    """Every dotted path below `synflow.` that a page or example imports or has in its reference."""
    found = set()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").iterdir()]
    for page in pages:
        if page.suffix not in (".md", ".py", ".ipynb"):
            continue
        text = page.read_text()
        if page.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        found |= set(re.findall(r"^::: (synflow[\w.]+)", text, re.M))
        found |= set(re.findall(r"^\s*import (synflow[\w.]*)", text, re.M))
        for module, names in re.findall(r"^\s*from (synflow[\w.]*) import ([\w, ]+)", text, re.M):
            found |= {f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(",")}
    return found


@pytest.mark.parametrize("path", sorted({*DOCUMENTED_BEFORE, *paths_in_the_pages()}))
def test_documented_paths_can_be_imported(path):
    assert pkgutil.resolve_name(path)


def test_paths_of_earlier_versions_are_attributes_too():
    assert synflow.theory.Conservation is synflow.certificates.Conservation
    assert synflow.scores.SCORES is synflow.SCORES
