"""The contents of a model's folder, in a form in which two looks can be compared.

A load needs to know what has changed since the last one: the configuration only, one version, or something that all
versions may read. Compared are names, sizes and times of change, never what files hold, so a look costs one `stat` per
file. A file that a link leads to counts as if it lay there, and so does a version folder that is a link (a volume, a
folder that several models share); other linked folders are not entered, they may be anything.

What Python writes beside the code that it imports does not count: for upstream a model has changed because it was
loaded, and it is loaded once more.
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
    """A look at a model's folder; what cannot be read, or is gone meanwhile, counts as not there."""
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
