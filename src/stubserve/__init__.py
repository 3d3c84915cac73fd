"""stubserve serves a Triton model repository from plain Python processes.

docs/architecture.md says what each package contains, and which may import which.
"""

__version__ = "0.1.0"
