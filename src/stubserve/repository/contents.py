"""The contents of a model's folder, in a form in which two looks can be compared.

A load must know which files have changed since the last one: the configuration only, one version, or a file that all
versions may read. Names, sizes and times of change are compared, never the bytes, so a look costs one `stat` per file.
A link to a file counts as that file, and a link to a version folder as that folder (a volume, a folder that several
models share). Other linked folders are not entered, as they may be anything.

Files that Python writes beside imported code do not count: in upstream, a model has changed because it was loaded, and
is loaded once more.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stubserve.repository.folder import CONFIG_FILE

_WRITTEN_BY_PYTHON = "__pycache__"


@dataclass(frozen=True)
class Contents:
    """Digests of config.pbtxt, of each version's folder by its name, and of everything else."""

    config: bytes
    versions: Mapping[str, bytes]
    rest: bytes


def contents_of(folder: Path) -> Contents:
    """A look at a model's folder; unreadable or vanished files count as missing."""
    config, rest = _Digest(), _Digest()
    versions = {}
    entries: list[os.DirEntry[str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name == CONFIG_FILE:
            config.add_file(entry.path, "")
        elif entry.name.isascii() and entry.name.isdigit() and entry.is_dir():
            version = _Digest()
            version.add_folder(entry.path, "")
            versions[entry.name] = version.value()
        elif entry.is_dir(follow_symlinks=False):
            if entry.name != _WRITTEN_BY_PYTHON:
                rest.add_folder(entry.path, entry.name)
        else:
            rest.add_file(entry.path, entry.name)
    return Contents(config.value(), versions, rest.value())


class _Digest:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def value(self) -> bytes:
        return self._hash.digest()

    def add_folder(self, path: str, name: str) -> None:
        """Everything below `path`, under `name`."""
        for place, folders, files in os.walk(path):
            folders[:] = sorted(folder for folder in folders if folder != _WRITTEN_BY_PYTHON)
            inside = name + place[len(path) :]
            self._add(inside)
            for file in sorted(files):
                self.add_file(os.path.join(place, file), f"{inside}/{file}")
            for folder in folders:
                if os.path.islink(os.path.join(place, folder)):
                    self.add_file(os.path.join(place, folder), f"{inside}/{folder}")

    def add_file(self, path: str, name: str) -> None:
        with contextlib.suppress(OSError):
            try:
                found = os.stat(path)
            except FileNotFoundError:
                found = os.lstat(path)  # a link that leads nowhere
            self._add(f"{name}\0{found.st_mtime_ns}\0{found.st_size}")

    def _add(self, line: str) -> None:
        self._hash.update(os.fsencode(line) + b"\0\0")
