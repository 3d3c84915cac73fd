"""Repositories in the cloud as a part of the server: `repositories.py` opens those that settings name."""

from stubserve.parts import Part as PART

__all__ = ["PART"]
