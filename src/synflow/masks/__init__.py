"""Masks: attached to a model, stored in files, and the record of how they were made."""

from .attach import attach, attached, bake, density, fingerprint, load_state, rewind, shuffle, unmasked
from .files import load_masks, save_masks
from .results import Masks, Step, StepRecord

__all__ = [
    "Masks",
    "Step",
    "StepRecord",
    "attach",
    "attached",
    "bake",
    "density",
    "fingerprint",
    "load_masks",
    "load_state",
    "rewind",
    "save_masks",
    "shuffle",
    "unmasked",
]
