"""Large allocations, in a process of their own: what is freed is the system's again."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 1 << 20
# Pieces of a body between small objects that stay; before that, something that has glibc raise its threshold.
PROGRAM = f"""
import psutil
from stubserve.memory import malloc
{{give_back}}
large = b"x" * (30 * {MIB})
del large
before = psutil.Process().memory_info().rss
pieces, kept = [], []
for _ in range(100 * {MIB} // {{size}}):
    pieces.append(b"x" * {{size}})
    kept.append(bytes(2000))
del pieces
print((psutil.Process().memory_info().rss - before) // {MIB})
"""


# The second are what a connection over TLS has for a buffer.
@pytest.mark.parametrize("size", [MIB, MIB // 4])
@pytest.mark.parametrize(("give_back", "least", "most"), [("malloc.give_back_large()", 0, 10), ("", 80, 120)])
def test_large_pieces_go_back_when_they_are_freed(give_back: str, least: int, most: int, size: int) -> None:
    """And they do not without it: where that changes, the module has no reason."""
    program = PROGRAM.format(give_back=give_back, size=size)
    kept = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert least <= kept <= most
