"""The store in Redis as a part of the server: the response cache loads it for `--cache-config=redis,...`."""

from stubserve.parts import Part as PART

__all__ = ["PART"]
