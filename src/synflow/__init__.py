"""Prune neural networks before training, without data, with a proof that no layer collapses."""

from . import rules
from ._version import __version__
from .allocation import SCOPES
from .certificate import Certificate, certify
from .errors import MissingExtraError, SynflowError
from .gradients import saliency
from .linearization import NoRuleError, register_rule
from .mask_files import load_masks, save_masks
from .masks import attach, attached, bake, density, fingerprint, load_state, rewind, shuffle
from .pruning import Masks, Step, iterate, prune, score
from .schedules import SCHEDULES
from .scores import SCORES
from .selection import prunable
from .theory import conservation, critical_compression, max_compression

__all__ = [
    "SCHEDULES",
    "SCOPES",
    "SCORES",
    "Certificate",
    "Masks",
    "MissingExtraError",
    "NoRuleError",
    "Step",
    "SynflowError",
    "__version__",
    "attach",
    "attached",
    "bake",
    "certify",
    "conservation",
    "critical_compression",
    "density",
    "fingerprint",
    "iterate",
    "load_masks",
    "load_state",
    "max_compression",
    "prunable",
    "prune",
    "register_rule",
    "rewind",
    "rules",
    "saliency",
    "save_masks",
    "score",
    "shuffle",
]
