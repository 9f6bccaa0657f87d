"""The FSDP2 example of docs/train.md runs over two processes, and the page shows what is in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_fsdp2.py"


def test_the_page_shows_the_example():
    (snippet,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs" / "train.md").read_text(), re.MULTILINE | re.DOTALL)
    assert snippet in EXAMPLE.read_text()


def test_fsdp2_over_two_processes(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*command, str(EXAMPLE)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    weights = 16 * 64 + 64 * 64 + 64 * 4
    assert result.stdout == f"kept 0.0500 of the weights, {weights - round(weights / 20)} are exactly zero\n"
