"""The private copy of a model that scores run on, and which of its weights may be pruned."""
