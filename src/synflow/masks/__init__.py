"""Masks: on a model, in files, and with the record of how they were made."""
