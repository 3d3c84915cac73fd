"""stubserve serves a Triton model repository from plain Python processes. docs/architecture.md shows its packages."""

__version__ = "0.1.0"
