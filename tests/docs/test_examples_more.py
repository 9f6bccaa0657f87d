"""The other examples: the script that trains a compact network, and the notebook."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_compact_network_trains_to_nearly_the_accuracy_of_the_dense_one():
    pytest.importorskip("sklearn")
    result = subprocess.run(
        [sys.executable, EXAMPLES / "train_compact.py", "--epochs", "3", "--compression", "10"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert re.search(r"connected +yes", result.stdout)
    dense, compact = re.findall(r"^\w+ +([\d,]+) parameters +([\d.]+)%", result.stdout, flags=re.M)
    assert int(compact[0].replace(",", "")) < int(dense[0].replace(",", ""))
    assert float(compact[1]) > 80


def test_the_notebook_runs_and_shows_its_report(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    path = EXAMPLES / "tour.ipynb"
    assert all(not cell.get("outputs") for cell in json.loads(path.read_text())["cells"]), "kept without outputs"
    notebook = nbformat.read(path, as_version=4)
    client.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    assert re.search(r"connected +yes", text)
    assert float(re.search(r"largest difference of outputs: (\S+)", text)[1]) < 1e-4
    errors = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert all("tqdm" in text for text in errors), "a bar may ask for widgets, nothing else complains"
    assert outputs[-1]["data"]["text/html"].startswith("<iframe")
