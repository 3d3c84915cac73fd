"""Fuzzing of everything that reads bytes of strangers: guided by coverage where atheris is installed."""
