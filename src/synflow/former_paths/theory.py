"""`synflow.theory` is now `synflow.certificates`."""

from synflow.certificates import *  # noqa: F403
