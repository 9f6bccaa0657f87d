"""Prune neural networks before training, without data, with a proof that no layer collapses."""

from . import rules
from ._version import __version__
from .allocation import SCOPES
from .benchmarking import bench
from .certificate import Certificate, certify
from .compaction import Compaction, compact, expand, load_compact, save_compact
from .errors import MissingExtraError, SynflowError
from .gradients import saliency
from .inference import for_inference
from .linearization import NoRuleError, register_rule
from .mask_files import load_masks, save_masks
from .masks import attach, attached, bake, density, fingerprint, load_state, rewind, shuffle
from .onnx_export import export_onnx
from .pruning import Masks, Step, iterate, prune, score
from .reporting import Report, report
from .schedules import SCHEDULES
from .scores import SCORES
from .selection import prunable
from .theory import conservation, critical_compression, max_compression

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
