"""A mistake in a model's file, as the check of a backend reports it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class FileProblem(NamedTuple):
    """`file` is what to look at. A warning does not keep the model from being served."""

    file: Path
    text: str
    is_warning: bool = False
