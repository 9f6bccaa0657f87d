"""Which units may be removed: what is always zero, and which dimensions shrink together."""
