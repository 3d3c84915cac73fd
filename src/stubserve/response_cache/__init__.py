"""Answers that are kept: keys, entries, and where entries lie (`local`, `redis_store`). Nothing here knows a model."""
