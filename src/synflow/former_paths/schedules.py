"""`synflow.schedules` is now `synflow.pruning.schedules`."""

from synflow.pruning.schedules import *  # noqa: F403
