"""`synflow.gradients` is now `synflow.pruning.gradients`."""

from synflow.pruning.gradients import *  # noqa: F403
