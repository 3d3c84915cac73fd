"""Repository agents as a part of the server: `loading/finding.py` asks those that configurations name."""

from stubserve.parts import Part as PART

__all__ = ["PART"]
