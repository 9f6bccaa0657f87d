"""Training of narrow networks at the machine's speed, on CPU: sparse loops, fused layers, memory that is kept."""
