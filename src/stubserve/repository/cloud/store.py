"""A store of objects, as far as repositories need one: what lies below a place, and the bytes of one object.

The file systems are fsspec's (s3fs, gcsfs, adlfs), imported when the first repository is opened: a server without one
does not need them. All calls block, so they are for threads; every error is a ServeError that names the address.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubserve.errors import ServeError, internal, not_found, unavailable
from stubserve.repository.cloud.address import Address

log = logging.getLogger("stubserve.repository")

# What tells one content of an object from another, in the words of the different stores
_TAGS = ("ETag", "etag", "md5Hash", "generation", "version_id")
_TIMES = ("LastModified", "last_modified", "updated", "mtime")


@dataclass(frozen=True)
class Stamp:
    """What an object is known by, without its content: it has changed when this has."""

    size: int
    tag: str


class Store:
    """The objects below an address. Safe for threads."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._opening = threading.Lock()
        self._system: Any = None

    def names(self) -> list[str]:
        """What may be models: the names of the folders at the address. Raises ServeError."""
        root = self._address.path
        found = self._ask(lambda system: system.ls(root, detail=True, refresh=True))
        names = {self._below(entry["name"], root) for entry in found if entry["type"] == "directory"}
        return sorted(name for name in names if name and "/" not in name)

    def listing(self, name: str) -> dict[str, Stamp]:
        """The objects of a model by their path in it; empty where there are none. Raises ServeError."""
        root = f"{self._address.path}/{name}"
        try:
            found = self._ask(lambda system: system.find(root, detail=True, refresh=True))
        except ServeError as error:
            if error.__cause__ is None or not isinstance(error.__cause__, FileNotFoundError):
                raise
            found = {}
        stamps = {}
        for path, entry in found.items():
            inside = self._below(path, root)
            if not inside or path.endswith("/"):
                continue  # the mark of a folder
            if any(part in ("", ".", "..") for part in inside.split("/")) or "\\" in inside or "\0" in inside:
                log.warning("ignore object '%s' of %s: its name is no path of a file", path, self._address.text)
                continue
            stamps[inside] = _stamp(entry)
        return stamps

    def fetch(self, name: str, path: str, target: Path) -> None:
        """Writes an object of a model to a file. Raises ServeError."""
        self._ask(lambda system: system.get_file(f"{self._address.path}/{name}/{path}", str(target)))

    def _ask(self, what: Any) -> Any:
        """Raises ServeError; its cause is what the store's client has raised."""
        system = self._open()
        try:
            # What a listing was is remembered by default.
            system.invalidate_cache()
            return what(system)
        except Exception as raised:
            raise self._told(raised) from raised

    def _open(self) -> Any:
        with self._opening:
            if self._system is None:
                address = self._address
                try:
                    self._system = importlib.import_module("fsspec").filesystem(
                        address.protocol, skip_instance_cache=True, **address.options
                    )
                except ImportError:
                    raise unavailable(
                        f"repository '{address.text}' needs a package: run `pip install 'stubserve[{address.package}]'`"
                    ) from None
                except Exception as raised:
                    raise self._told(raised) from raised
            return self._system

    def _told(self, raised: Exception) -> ServeError:
        text = str(raised) or type(raised).__name__
        where = f"repository '{self._address.text}'"
        if isinstance(raised, FileNotFoundError):
            return not_found(f"{where} cannot be read: there is no {text}")
        if isinstance(raised, PermissionError):
            return internal(f"{where} cannot be read: {text}. Credentials come from {self._address.credentials}.")
        if "credential" in text.lower():
            return internal(f"{where} cannot be read: {text}. They come from {self._address.credentials}.")
        return unavailable(f"{where} cannot be read: {text}")

    def _below(self, path: str, root: str) -> str:
        """The part of a path below a root; empty if it is not there."""
        start = root.strip("/") + "/"
        plain = path.lstrip("/")
        return plain[len(start) :].rstrip("/") if plain.startswith(start) else ""


def _stamp(entry: Mapping[str, Any]) -> Stamp:
    tag = next((str(entry[key]) for key in _TAGS if entry.get(key)), "")
    changed = next((str(entry[key]) for key in _TIMES if entry.get(key)), "")
    return Stamp(int(entry.get("size") or 0), f"{tag} {changed}")
