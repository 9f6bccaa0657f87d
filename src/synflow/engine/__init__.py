"""The fast engine: the same masks as the plain algorithm, sooner and in less memory.

Its only public class is `FastEngine`, which the pruning loop loads by name; thresholds.py says when each part is used.
"""

from .fast import FastEngine
from .thresholds import EVERYTHING_ON, Thresholds, using

__all__ = ["EVERYTHING_ON", "FastEngine", "Thresholds", "using"]
