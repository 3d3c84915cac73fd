"""Sequences as a part of the server: models that ask for them in their configuration load them."""

from stubserve.parts import Part as PART

__all__ = ["PART"]
