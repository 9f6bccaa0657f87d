"""From the units that are removed to a smaller model."""
