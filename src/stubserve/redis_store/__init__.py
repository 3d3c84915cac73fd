"""Answers that are kept in Redis, for the response cache."""
