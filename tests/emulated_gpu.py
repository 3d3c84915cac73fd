"""The emulated driver of GPUs, built and at hand: what it guarantees is written in its `emulator.h`."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "stub" / "device" / "emulator"
# The directions in which the emulator counts bytes
UP, DOWN, WITHIN, PEER, STAGED = range(5)
# Bytes that went down into registered memory, and how often memory was registered
DOWN_REGISTERED, REGISTRATIONS = 5, 6


def compiler() -> str:
    """The C compiler; without one, the test that asks is skipped."""
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is None:
        pytest.skip("needs a C compiler (cc), which builds the emulated driver")
    return found


def build(folder: Path) -> Path:
    """The emulated driver, as a library in this folder."""
    library = folder / "libcuda.so.1"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-O1", "-g", "-shared", "-fPIC"]
    command = [compiler(), *flags, "-pthread", "-o", str(library), *map(str, sorted(SOURCES.glob("*.c")))]
    subprocess.run(command, check=True)
    return library


class Emulator:
    """What a test asks of the emulated driver in its own process, and looks at there."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self._c = ctypes.CDLL(str(library))
        self._c.emulator_bytes.restype = ctypes.c_ulonglong

    def fail(self, function: str, error: int, after: int = 0) -> None:
        """Has one call of a function fail: the next one, or the one after so many."""
        self._c.emulator_fail(function.encode(), after, error)

    def lose(self, device: int, error: int) -> None:
        """Every later call for the device fails, and its work is not done."""
        self._c.emulator_lose(device, error)

    def nbytes(self, direction: int) -> int:
        """How many bytes were copied in a direction."""
        return int(self._c.emulator_bytes(direction))

    def live(self) -> dict[str, int]:
        """How many there are of what has to be let go of, but for what there is none of."""
        kinds = ("handles", "ranges", "mappings", "registrations", "streams", "events")
        counts = {kind: self._c.emulator_live(kind.encode()) for kind in kinds}
        assert min(counts.values()) >= 0
        return {kind: count for kind, count in counts.items() if count}
