"""Answers that are kept: keys, entries, their stores, and the stage in front of a model's queue (`stage`)."""
