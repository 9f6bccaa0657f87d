"""The private copy of a model on which scores run, and the selection of its prunable weights."""
