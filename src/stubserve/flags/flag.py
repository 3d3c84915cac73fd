"""One flag of `stubserve serve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `setting` is what it sets, as the group and field of `Settings` (or a field of its own).

    `many` flags may be repeated and collect; a `switch` needs no value (bare means true).
    """

    name: str
    setting: str
    parse: Callable[[str], Any]
    help: str
    many: bool = False
    switch: bool = False
