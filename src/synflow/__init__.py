"""Prune neural networks before training, without data, with a proof that a path from input to output stays."""

from __future__ import annotations

from .support import early_interrupts as _early_interrupts  # noqa: F401  (first: the rest takes time to import)

# isort: split
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import MissingExtraError, SynflowError

if TYPE_CHECKING:
    from . import rules
    from .benchmarking.run import bench
    from .certificates.certificate import Certificate, certify
    from .certificates.conservation import conservation
    from .certificates.limits import critical_compression, limits, max_compression
    from .compaction import Compaction, compact, expand, load_compact, save_compact
    from .flow.dispatch import NoRuleError, register_rule
    from .inference.folded_norms import for_inference
    from .inference.onnx import export_onnx
    from .masks.attach import attach, attached, bake, density, fingerprint, load_state, rewind, shuffle, unmasked
    from .masks.files import load_masks, save_masks
    from .masks.redraw import redraw
    from .masks.results import Masks, Step
    from .network.selection import prunable
    from .pruning.gradients import saliency
    from .pruning.loop import iterate, prune, score
    from .pruning.schedules import SCHEDULES
    from .pruning.scopes import SCOPES
    from .pruning.scores import SCORES
    from .reporting import Report, report

# Where the public names are defined. A module is imported when one of its names is first used: `import synflow` and
# `synflow --help` do not wait for torch. The imports above say the same to type checkers; a test compares the two.
_HOMES = {
    "benchmarking.run": "bench",
    "certificates.certificate": "Certificate certify",
    "certificates.conservation": "conservation",
    "certificates.limits": "critical_compression limits max_compression",
    "compaction": "Compaction compact expand load_compact save_compact",
    "flow.dispatch": "NoRuleError register_rule",
    "inference.folded_norms": "for_inference",
    "inference.onnx": "export_onnx",
    "masks.attach": "attach attached bake density fingerprint load_state rewind shuffle unmasked",
    "masks.files": "load_masks save_masks",
    "masks.redraw": "redraw",
    "network.selection": "prunable",
    "pruning.gradients": "saliency",
    "masks.results": "Masks Step",
    "pruning.loop": "iterate prune score",
    "pruning.schedules": "SCHEDULES",
    "pruning.scopes": "SCOPES",
    "pruning.scores": "SCORES",
    "reporting": "Report report",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

# `import synflow.theory` and other documented paths of earlier versions.
__path__.append(str(Path(__file__).with_name("former_paths")))

__all__ = [
    "SCHEDULES", "SCOPES", "SCORES", "Certificate", "Compaction", "Masks", "MissingExtraError", "NoRuleError",
    "Report", "Step", "SynflowError", "__version__", "attach", "attached", "bake", "bench", "certify",
    "compact", "conservation", "critical_compression", "density", "expand", "export_onnx", "fingerprint",
    "for_inference", "iterate", "limits", "load_compact", "load_masks", "load_state", "max_compression",
    "prunable", "prune", "redraw", "register_rule", "report", "rewind", "rules", "saliency", "save_compact",
    "save_masks", "score", "shuffle", "unmasked",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, or a module of this package, imported now."""
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    elif any(Path(folder, file).is_file() for folder in __path__ for file in (f"{name}/__init__.py", f"{name}.py")):
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
