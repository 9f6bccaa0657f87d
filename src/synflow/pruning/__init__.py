"""Scores, schedules, scopes and the loop that turns them into masks."""

from ..masks.results import Masks, Step, StepRecord
from .loop import iterate, prune, score

__all__ = ["Masks", "Step", "StepRecord", "iterate", "prune", "score"]
