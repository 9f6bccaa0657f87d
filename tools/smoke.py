"""Try a wheel as its first user will: in a fresh environment, without extras.

python tools/smoke.py dist
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_BYTES = 1_000_000
MOST_SECONDS = 0.3

TRIAL = """
import torch, synflow
from torch import nn
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
example = torch.ones(1, 10)
masks = synflow.prune(model, example, compression=10)
assert synflow.certify(model, masks, example).connected
small = synflow.compact(model, example, masks)
assert sum(p.numel() for p in small.parameters()) < 325
synflow.save_masks(masks, "masks.safetensors")
synflow.load_masks("masks.safetensors", model)
from synflow.reporting import report
assert report(model, masks, example, small=small).html.startswith("<!doctype html>")
print(synflow.__version__)
"""
IMPORT = "import time, torch; start = time.perf_counter(); import synflow; print(time.perf_counter() - start)"
MISSING = "import torch, synflow; synflow.export_onnx(torch.nn.Linear(2, 2), torch.ones(1, 2), 'x.onnx')"


def run(*command: str | Path, code: int = 0, cwd: Path | None = None) -> str:
    """Run a program; anything but the expected exit code ends the trial."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=cwd)
    if done.returncode != code:
        sys.exit(f"{' '.join(map(str, command))} left with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main() -> None:
    """Install, use, and look at what is missing."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("synflow/py.typed", "synflow/reporting/style.css", "synflow/reporting/script.js"):
        assert wanted in names, f"{wanted} is not in {wheel.name}"
    assert not [name for name in names if not name.startswith("synflow")], "only the package is installed"
    assert wheel.stat().st_size < MOST_BYTES, f"{wheel.name} has {wheel.stat().st_size:,} bytes"
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {source.name}: {source.stat().st_size:,} bytes")
    with tempfile.TemporaryDirectory() as made:
        here = Path(made)
        venv.create(here / "venv", with_pip=True)
        python = here / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", wheel)
        version = run(python, "-c", TRIAL, cwd=here).strip()
        assert version in wheel.name, f"the package says {version}, the file {wheel.name}"
        said = run(here / "venv" / "bin" / "synflow", "doctor", code=1, cwd=here)
        assert "pip install 'synflow[cli]'" in said, said
        said = run(python, "-c", MISSING, code=1, cwd=here)
        assert "pip install 'synflow[onnx]'" in said, said
        seconds = min(float(run(python, "-c", IMPORT, cwd=here)) for _ in range(3))
        assert seconds < MOST_SECONDS, f"import synflow takes {seconds:.2f} s beyond torch, at most {MOST_SECONDS}"
        print(f"fresh environment: works, missing extras are named, import takes {seconds:.2f} s beyond torch")


if __name__ == "__main__":
    main()
