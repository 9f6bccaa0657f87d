"""The examples run as a user would run them."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "prune_vgg.py"


def run(*options):
    return subprocess.run(
        [sys.executable, EXAMPLE, *options], capture_output=True, text=True, encoding="utf-8", timeout=300
    )


def test_prints_the_certificate_and_a_bar_for_each_layer():
    result = run("--model", "fc", "--classes", "10", "--side", "8", "--compression", "50")
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert "fc at 50x by synflow" in result.stdout
    kept, total = (round((192 * 100 + 4 * 100 * 100 + 100 * 10) / share) for share in (50, 1))
    assert f"{kept:,} of {total:,}" in result.stdout
    assert re.search(r"connected +yes", result.stdout)
    rows = re.findall(r"^(\d+) +([\d,]+) +([\d,]+) +\d+/\d+ +[\d.]+% [▏▎▍▌▋▊▉█]*$", result.stdout, flags=re.M)
    assert [row[0] for row in rows] == ["1", "3", "5", "7", "9", "11"]
    assert sum(int(row[1].replace(",", "")) for row in rows) == kept
    table = result.stdout[result.stdout.index("layer  ") :]
    assert max(map(len, table.splitlines())) <= 80


def test_scores_that_read_data_get_some():
    result = run("--model", "conv", "--score", "snip", "--side", "6", "--compression", "20", "--seed", "3")
    assert result.returncode == 0, result.stderr
    assert "conv at 20x by snip" in result.stdout


def test_help_lists_the_choices_and_bad_input_gets_one_line():
    assert "vgg16_bn" in run("--help").stdout
    result = run("--model", "fc", "--side", "4", "--compression", "0.5")
    assert result.returncode == 1
    assert result.stderr.startswith("error: compression must be at least 1")
    assert "Traceback" not in result.stderr
