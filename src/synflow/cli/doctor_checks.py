"""What `synflow doctor` checks: packages, devices, and the laws of the flow on small networks."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from .._version import __version__
from ..certificates.certificate import certify
from ..certificates.conservation import conservation
from ..compaction import compact
from ..compaction.result import compaction_of
from ..pruning.loop import prune

EXTRAS = {
    "cli": ("typer", "rich"), "vision": ("timm", "torchvision"), "hf": ("transformers", "accelerate"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"), "plots": ("matplotlib",), "experiments": ("sklearn",),
    "fast": ("numba",), "openvino": ("openvino",), "parquet": ("pyarrow",), "ray": ("ray",),
    "logging": ("tensorboard", "mlflow"), "wandb": ("wandb",),
}  # fmt: skip
# Prints one line per package: the result of its import. Loading models uses the same cure for torchvision.
TRY_IMPORTS = """
import importlib, sys, warnings
warnings.simplefilter("ignore")
from synflow.models.torchvision_cure import cure_torchvision
cure_torchvision()
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        said = ""
    except BaseException as cause:
        said = f"{type(cause).__name__}: {cause}".replace("\\n", " ").replace("\\t", " ")
    print(f"synflow-import\\t{name}\\t{said}", flush=True)
"""


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.head(x + self.attention(x, x, x, need_weights=False)[0])
        return mixed


def diagnosis() -> dict[str, Any]:
    """Versions, devices, extras, the self-test, and whether everything works."""
    checks = {name: _checked(check) for name, check in CHECKS.items()}
    extras = _extras()
    return {
        "versions": {"synflow": __version__, "python": platform.python_version(), "torch": str(torch.__version__)},
        "devices": {
            "cpu threads": str(torch.get_num_threads()),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "mps": "yes" if torch.backends.mps.is_available() else "none",
            "free disk": f"{shutil.disk_usage('.').free / 1e9:.0f} GB here",
        },
        "extras": extras,
        "self-test": checks,
        "healthy": all(check["ok"] for check in checks.values())
        and not any(extra["broken"] for extra in extras.values()),
    }


def _extras() -> dict[str, dict[str, Any]]:
    """The installed packages, and the errors of those that cannot be imported."""
    there = {name: find_spec(name) is not None for packages in EXTRAS.values() for name in packages}
    errors = _import_errors([name for name, found in there.items() if found])
    return {
        extra: {
            "installed": all(there[name] for name in packages), "missing": [n for n in packages if not there[n]],
            "broken": {name: errors[name] for name in packages if name in errors},
        }
        for extra, packages in EXTRAS.items()
    }  # fmt: skip


def _import_errors(names: list[str]) -> dict[str, str]:
    """Import packages in a separate process, which a broken package may crash; returns the errors by package."""
    run = subprocess.run(
        [sys.executable, "-c", TRY_IMPORTS, *names], capture_output=True, text=True, timeout=600, check=False
    )
    lines = [line.split("\t", 2)[1:] for line in run.stdout.splitlines() if line.startswith("synflow-import\t")]
    found = {name: " ".join(said.split())[:300] for name, said in lines if said}
    tried = [name for name, _ in lines]
    if run.returncode and len(tried) < len(names):
        found[names[len(tried)]] = f"importing it ends the process with code {run.returncode}"
    return found


def _chain() -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 16, 5)).eval(), torch.ones(1, 3, 8, 8)


def _units() -> tuple[bool, str]:
    residual = conservation(*_chain()).unit_residual
    assert residual is not None
    return residual < 1e-4, f"inflow = outflow at every unit, within {residual:.0e}"


def _cuts() -> tuple[bool, str]:
    conserved = conservation(*_chain())
    residual = conserved.layer_residual
    assert residual is not None
    return residual < 1e-4 and len(conserved.cuts) == 3, f"each layer carries the whole flow, within {residual:.0e}"


def _deep() -> tuple[bool, str]:
    layers = [layer for _ in range(100) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model, example = nn.Sequential(*layers), torch.ones(1, 64)
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0, 64)
    certificate = certify(model, prune(model, example, compression=50, steps=3), example)
    ok = certificate.connected and certificate.flow_log2_before > 1024
    return ok, f"100 layers, flow 2^{certificate.flow_log2_before:.0f}: every score finite, connected"


def _attention() -> tuple[bool, str]:
    model, example = _Attention(), torch.ones(1, 4, 8)
    certificate = certify(model, prune(model, example, compression=10, steps=10), example)
    return (
        certificate.connected and certificate.kept == 29,
        f"{certificate.kept} of {certificate.total} kept, connected",
    )


def _smaller() -> tuple[bool, str]:
    model, example = _chain()
    compaction = compaction_of(compact(model, example, prune(model, example, compression=20, steps=10)))
    before, after = compaction.parameters
    found = f"{before:,} parameters became {after:,}, outputs equal"
    return compaction.difference < 1e-6 and after < before, found


CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "conservation at units": _units,
    "conservation at cuts": _cuts,
    "depth": _deep,
    "attention": _attention,
    "compaction": _smaller,
}


def _checked(check: Callable[[], tuple[bool, str]]) -> dict[str, Any]:
    """Run a check; an error in it is a finding, not the end of the diagnosis."""
    start = time.perf_counter()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            ok, text = check()
    except Exception as cause:
        ok, text = False, f"{type(cause).__name__}: {cause}"
    return {"ok": ok, "found": text, "seconds": time.perf_counter() - start}
