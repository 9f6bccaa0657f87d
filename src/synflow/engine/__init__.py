"""The fast engine: the same masks as the plain algorithm, sooner and in less memory."""
