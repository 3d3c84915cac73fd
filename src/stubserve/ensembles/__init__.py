"""Ensembles: which step runs when (`plan`, `flow`), the model and its runs (`model`, `run`), checks and the start.

`plan` and `flow` do no I/O, and know nothing about memory or models.
"""
