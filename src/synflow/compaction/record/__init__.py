"""What a model computes in one run, written down operation by operation."""
