"""Repositories in S3, Google Cloud Storage and Azure: a model is copied to a folder, and served from there (`mirror`).

Stores are called in daemon threads, so a hanging store delays neither the event loop, nor other models, nor the end.
"""
