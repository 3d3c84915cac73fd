"""Ensembles as a part of the server: configurations of the platform `ensemble` load them."""

from stubserve.parts import Part as PART

__all__ = ["PART"]
