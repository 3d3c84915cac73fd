"""Repositories in S3, Google Cloud Storage and Azure: a model is copied to a folder, and served from there (`mirror`).

Stores are asked in daemon threads, so one that hangs holds up neither the event loop, nor other models, nor the end.
"""
