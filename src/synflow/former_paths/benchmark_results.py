"""`synflow.benchmark_results` is now `synflow.benchmarking`."""

from synflow.benchmarking import *  # noqa: F403
