"""What can be proved of a pruned network: the certificate, conservation, limits of compression."""

from .certificate import Certificate, certify
from .theory import Conservation, conservation, critical_compression, max_compression

__all__ = ["Certificate", "Conservation", "certify", "conservation", "critical_compression", "max_compression"]
