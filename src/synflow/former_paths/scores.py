"""`synflow.scores` is now `synflow.pruning.scores`."""

from synflow.pruning.scores import *  # noqa: F403
