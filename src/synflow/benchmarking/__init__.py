"""How fast and how large a network is, against others in the same run."""

from .results import Benchmark
from .run import bench

__all__ = ["Benchmark", "bench"]
