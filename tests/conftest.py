"""Shared set-up: one torch thread per worker, and a CUDA-linked torchvision made importable on a CPU torch."""

import importlib.metadata
import os

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# The registry's torchvision is linked against CUDA; with a CPU torch its import fails for two missing operator
# schemas. Declaring them is enough for every model here. The object must stay alive.
_TORCHVISION_SCHEMAS = []
if not torch.cuda.is_available():
    try:
        cuda_build = "+cu" in importlib.metadata.version("torchvision") or torch.version.cuda is None
    except importlib.metadata.PackageNotFoundError:
        cuda_build = False
    if cuda_build:
        _library = torch.library.Library("torchvision", "FRAGMENT")
        _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _TORCHVISION_SCHEMAS.append(_library)

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


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
