"""Sequences: their batcher (`batcher`), the models that have one (`model`), checks of configurations (`problems`)."""
