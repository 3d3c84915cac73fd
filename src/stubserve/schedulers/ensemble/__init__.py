"""Ensembles: which step of a pipeline runs when, with which tensors. No I/O, and nothing about memory or models."""
