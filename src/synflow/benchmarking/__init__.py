"""Speed and size of a network, compared with others in the same run."""

from .results import Benchmark
from .run import bench

__all__ = ["Benchmark", "bench"]
