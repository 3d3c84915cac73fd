"""The rate limiter as a part of the server: the loader makes the queues of models with it where it is on."""

from stubserve.parts import Part as PART

__all__ = ["PART"]
