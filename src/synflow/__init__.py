"""Prune neural networks before training, without data, with a proof that no layer collapses."""

import sys

from . import benchmarking, certificates, rules
from ._version import __version__
from .benchmarking.run import bench
from .certificates.certificate import Certificate, certify
from .certificates.theory import conservation, critical_compression, max_compression
from .compaction import Compaction, compact, expand, load_compact, save_compact
from .errors import MissingExtraError, SynflowError
from .flow.dispatch import NoRuleError, register_rule
from .inference.folded_norms import for_inference
from .inference.onnx import export_onnx
from .masks.attach import attach, attached, bake, density, fingerprint, load_state, rewind, shuffle
from .masks.files import load_masks, save_masks
from .network.selection import prunable
from .pruning import gradients, schedules, scores
from .pruning.gradients import saliency
from .pruning.loop import Masks, Step, iterate, prune, score
from .pruning.schedules import SCHEDULES
from .pruning.scopes import SCOPES
from .pruning.scores import SCORES
from .reporting import Report, report

# Module paths that were documented before the packages had their present names.
theory, benchmark_results = certificates, benchmarking
for _path, _module in (
    ("theory", theory),
    ("benchmark_results", benchmark_results),
    ("gradients", gradients),
    ("schedules", schedules),
    ("scores", scores),
):
    sys.modules[f"{__name__}.{_path}"] = _module

__all__ = [
    "SCHEDULES",
    "SCOPES",
    "SCORES",
    "Certificate",
    "Compaction",
    "Masks",
    "MissingExtraError",
    "NoRuleError",
    "Report",
    "Step",
    "SynflowError",
    "__version__",
    "attach",
    "attached",
    "bake",
    "bench",
    "certify",
    "compact",
    "conservation",
    "critical_compression",
    "density",
    "expand",
    "export_onnx",
    "fingerprint",
    "for_inference",
    "iterate",
    "load_compact",
    "load_masks",
    "load_state",
    "max_compression",
    "prunable",
    "prune",
    "register_rule",
    "report",
    "rewind",
    "rules",
    "saliency",
    "save_compact",
    "save_masks",
    "score",
    "shuffle",
]
