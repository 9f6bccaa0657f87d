"""Masks: attached to a model, stored in files, and the record of how they were made."""
