"""From masks to a smaller network with the same outputs: see `compacting` for how it works."""

from .compacting import compact, expand
from .files import load_compact, save_compact
from .result import Compaction

__all__ = ["Compaction", "compact", "expand", "load_compact", "save_compact"]
