"""The agent `checksum`: a model's files must have the digests that its configuration lists.

They are parameters `MD5:<file within the model's folder>`. The agent is built in, as in upstream's container.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from stubserve.errors import internal, invalid

NAME = "checksum"
_CHUNK = 1 << 20


def check(folder: Path, parameters: Mapping[str, str]) -> None:
    """Raises ServeError that names the first file with another digest."""
    for key, expected in parameters.items():
        algorithm, colon, path = key.partition(":")
        if algorithm != "MD5" or not colon or not path:
            raise invalid(f"repository agent 'checksum' has parameters MD5:<file>. Got '{key}'")
        file = folder / path.lstrip("/")
        if not file.resolve().is_relative_to(folder.resolve()):
            raise invalid(f"repository agent 'checksum': '{path}' is outside of the model's folder")
        try:
            found = _md5(file)
        except OSError as error:
            raise internal(f"Failed to read file {file} for its MD5 hash: {error.strerror}") from None
        if found != expected.strip().lower():
            raise invalid(f"Mismatched MD5 hash for file {path}, expect {expected}, got {found}")


def _md5(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as content:
        while piece := content.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()
