"""Proofs about a pruned network: the certificate, conservation, limits of compression."""

from .certificate import Certificate, certify
from .conservation import Conservation, conservation
from .limits import critical_compression, max_compression

__all__ = ["Certificate", "Conservation", "certify", "conservation", "critical_compression", "max_compression"]
