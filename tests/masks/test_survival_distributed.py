"""Masks hold in DDP and FSDP2, over two real processes, with checkpoints by torch.distributed.checkpoint."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = Path(__file__).parents[1] / "support" / "ranks.py"
CHECKS = [
    "ddp",
    "fsdp_attach_before",
    "fsdp_attach_after",
    "fsdp_mixed_precision",
    "fsdp_checkpoint",
    "fsdp_bake",
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each rank reports, once for all tests here; a rank that hangs is ended and reports nothing."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(RANKS), str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    reports = []
    for rank, process in enumerate(processes):
        try:
            output, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"rank {rank} hung\n{process.communicate()[0]}"
        file = folder / f"rank{rank}.json"
        reports.append((json.loads(file.read_text()) if file.exists() else {}, output))
    return reports


@pytest.mark.parametrize("check", CHECKS)
def test_on_two_ranks(reports, check):
    for results, output in reports:
        assert results.get(check, f"not reached\n{output}") == ""


def test_no_check_is_left_out():
    tree = ast.parse(RANKS.read_text())
    listed = next(node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "CHECKS")
    assert [element.id for element in listed.value.elts] == CHECKS
