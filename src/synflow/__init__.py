"""Prune neural networks before training, without data, with a proof that no layer collapses."""

from ._version import __version__

__all__ = ["__version__"]
