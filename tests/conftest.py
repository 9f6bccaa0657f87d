"""Shared set-up: one torch thread per worker, and a CUDA-linked torchvision made importable on a CPU torch."""

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from synflow.models.torchvision_cure import cure_torchvision

torch.set_num_threads(1)
# An unexpected fallback of the fast engine is an error, also in programs that tests start.
os.environ.setdefault("SYNFLOW_STRICT", "1")
# Programs that tests start share two cores with the other test worker: with two threads each they wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

cure_torchvision()

# Started in the background of a shell, tests inherit that Ctrl-C is ignored, and so would the programs they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` runs each law on SYNFLOW_EXAMPLES networks, `make fuzz` on many more.
settings.register_profile(
    "synflow",
    max_examples=int(os.environ.get("SYNFLOW_EXAMPLES", "60")),
    deadline=None,
    derandomize="SYNFLOW_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.load_profile("synflow")


# Tests that `make test-fast` leaves out: those of the rooms above the core, and files that start other processes,
# compilers, trainers or large libraries. Single tests elsewhere carry the mark themselves.
INTEGRATION = (
    "benchmarking", "cli", "docs", "experiments", "inference", "reporting", "compaction/test_compaction_models.py",
    "masks/test_survival_compile.py", "masks/test_survival_distributed.py", "masks/test_survival_frameworks.py",
)  # fmt: skip

# Tests of all combinations, each of which takes as long as a whole room; `make test` runs them, `make test-fast` leaves
# them to the other tests of the same files.
EXHAUSTIVE = (
    "test_class_tokens_fused_projections_and_zero_heads_stay_alive",
    "test_no_score_disconnects_the_zoo_or_kills_a_layer_that_has_room",
    "test_the_zoo_is_pruned_alike",
)

# Tests that take longest, one by one: they are started first.
LONG = (*EXHAUSTIVE, "test_the_fast_engine_keeps_what_the_plain_one_keeps")


def is_integration(path):
    place = path.relative_to(Path(__file__).parent).as_posix()
    return any(place == part or place.startswith(f"{part}/") for part in INTEGRATION)


def pytest_ignore_collect(collection_path, config):
    """Files that are left out as a whole are not read at all: they import large libraries."""
    if "not integration" in config.option.markexpr and is_integration(collection_path):
        return True
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        if getattr(item, "originalname", "") in EXHAUSTIVE:
            item.add_marker(pytest.mark.exhaustive)
        if is_integration(item.path):
            item.add_marker(pytest.mark.integration)
    # The longest first, so that at the end no worker waits for another.
    items.sort(key=lambda item: getattr(item, "originalname", "") not in LONG)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
