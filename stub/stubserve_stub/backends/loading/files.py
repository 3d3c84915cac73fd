"""The kind of a file that a backend cannot use, as far as its first bytes tell."""

from __future__ import annotations

from typing import List, Tuple

_KINDS: List[Tuple[bytes, str]] = [
    (b"version https://git-lfs", "a pointer of Git LFS: `git lfs pull` gets the file"),
    (b"PK\x03\x04", "a zip archive, as PyTorch saves models"),
    (b"\x89HDF", "an HDF5 file"),
    (b"<", "a web page or XML"),
]
# So many bytes are enough to tell.
HEAD_BYTES = 200


def resemblance(head: bytes) -> str:
    """For the end of a sentence that says what the file is not; empty for files of unknown kinds."""
    for start, what in _KINDS:
        if head.startswith(start):
            return "; it is " + what
    return ""
