"""Answers that are kept: keys, entries, and their stores (`local`, `redis_store`). Nothing here knows a model."""
