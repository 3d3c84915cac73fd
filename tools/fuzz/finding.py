"""What a fuzz target must not do, whatever its input: raise, take long, take much memory, contradict its twin."""

from __future__ import annotations

import gc
import time
import traceback
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Far above what is usual, so that only what grows faster than its input is found, on a busy machine too.
BASE_S, S_PER_BYTE = 0.5, 50e-6
BASE_BYTES, BYTES_PER_BYTE = 2 << 20, 400


class Finding(AssertionError):
    """A defect that an input shows: `what` it is, the same for every such input, and the details of this one."""

    def __init__(self, what: str, details: str = "") -> None:
        super().__init__(f"{what}: {details}")
        self.what = what


def bounded(fuzz_one: Callable[[bytes], None], data: bytes) -> None:
    """Runs a target on one input. Raises Finding when its time or memory is out of proportion to the input.

    Time is that of the processor, so others on the machine do not count. Memory is counted for one input in eight,
    always the same ones, because counting takes longer than most inputs; so the time of these does not count.
    """
    peak = 0
    # A collection walks through all that the process has, whatever the input.
    gc.disable()
    counts = zlib.crc32(data) % 8 == 0
    if counts:
        tracemalloc.start()
    began = time.process_time()
    try:
        fuzz_one(data)
        taken_s = time.process_time() - began
        if counts:
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
        if counts:
            # Between inputs too little is made for a collection to begin by itself, and circles would pile up.
            gc.collect(1)
    if not counts and taken_s > BASE_S + S_PER_BYTE * len(data):
        raise Finding("it takes too long", f"{len(data)} bytes took {taken_s:.2f} s")
    if peak > BASE_BYTES + BYTES_PER_BYTE * len(data):
        raise Finding("it takes too much memory", f"{len(data)} bytes took {peak >> 10} KiB")


def same(one: Any, other: Any, what: str, details: str = "") -> None:
    """Raises Finding unless two ways to read the same input say the same."""
    if one != other:
        raise Finding(what, f"{details}\n  {_short(one)}\n  {_short(other)}")


class Findings:
    """What was found, each defect once, with the shortest input that shows it. Kept in a folder as it grows."""

    def __init__(self, folder: Path) -> None:
        self.inputs: dict[str, bytes] = {}
        self._folder = folder

    def examine(self, fuzz_one: Callable[[bytes], None], data: bytes) -> None:
        """Runs a target on one input, within bounds, and remembers what is wrong."""
        try:
            bounded(fuzz_one, data)
        except Exception as error:
            what = _where(error)
            known = self.inputs.get(what)
            if known is None or len(data) < len(known):
                self.inputs[what] = data
                name = f"{zlib.crc32(what.encode()):08x}"
                (self._folder / f"{name}.input").write_bytes(data)
                (self._folder / f"{name}.txt").write_text(f"{what}\n\n{''.join(traceback.format_exception(error))}")


def read(folder: Path) -> list[tuple[str, bytes]]:
    """The findings in a folder: what they are, and an input each."""
    found = sorted(folder.glob("*.txt"))
    return [(path.read_text().partition("\n")[0], path.with_suffix(".input").read_bytes()) for path in found]


def _where(error: Exception) -> str:
    """A defect's name: what was raised, and the last line of the server's own that it came through."""
    if isinstance(error, Finding):
        return error.what
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "stubserve" in Path(frame.filename).parts] or frames
    place = "/".join(Path(own[-1].filename).parts[-3:])
    return f"{type(error).__name__} in {place}:{own[-1].lineno}, {own[-1].name}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 1000 else f"{text[:1000]}..."
