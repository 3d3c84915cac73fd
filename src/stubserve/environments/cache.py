"""The folder in which archives of environments are extracted, shared by models, instances and servers.

    <cache>/<key>/        the environment
    <cache>/<key>.json    what it was made from; empty until it is complete

The key is made of the archive's size, its time of change, and samples of its content: the same archive beside two
models is extracted once, a touched one again. The small file is both record and lock. A process that extracts holds it
exclusively, a process with stubs in the environment holds it shared (a `Lease`), and the kernel releases both when a
process dies. The record is written last, when all else is on the disk. So an extraction that is interrupted, even by a
crash of the machine, has no record, and the next server that needs it removes it. (Extracting under another name and
renaming would not work: conda-unpack writes the final place into the files.)

Nothing in the cache is needed: it can be deleted at any time when no server runs. Each extraction removes entries of a
changed archive, and those that have not been used for a month.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

UNUSED_DAYS = 30

_SAMPLES = 64
_SAMPLE_BYTES = 1 << 16


class CacheLease:
    """Keeps an entry of the cache from being removed, until this object dies."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._end = weakref.finalize(self, os.close, descriptor)


def default_folder(name: str = "environments") -> Path:
    """Below the user's cache folder, or below the temporary one if the home cannot be written to."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    home = base / "stubserve" / name
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(home, os.W_OK):
            return home
    return Path(tempfile.gettempdir()) / f"stubserve-{name}-{os.getuid()}"


def make_folder(folder: Path) -> None:
    """Makes the cache's folder; other users may not write there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(
            13, "belongs to another user, or others may write there; choose one with --environment-cache", str(folder)
        )


def key_of(archive: Path) -> str:
    """The name of an archive's entry. Reads at most 4 MiB of it. Raises OSError."""
    with archive.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        digest = hashlib.blake2b(f"{status.st_size} {status.st_mtime_ns}".encode(), digest_size=12)
        # The last sample holds the checksum of the whole where the archive is compressed.
        last = max(status.st_size - _SAMPLE_BYTES, 0)
        for number in range(_SAMPLES):
            file.seek(last * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def lease(cache: Path, key: str) -> CacheLease | None:
    """The entry if it is complete, None if it is not or if another process works on it. Raises OSError."""
    record = cache / f"{key}.json"
    try:
        descriptor = os.open(record, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        complete = _same_file(descriptor, record) and _read(descriptor) is not None
        if complete and not (cache / key).is_dir():
            # The folder has been deleted. Servers may hold the record for good, so a new one takes its place.
            record.unlink()
            complete = False
    except BlockingIOError:
        complete = False
    except BaseException:
        os.close(descriptor)
        raise
    if not complete:
        os.close(descriptor)
        return None
    os.utime(descriptor)
    return CacheLease(cache / key, descriptor)


class Entry:
    """An entry of the cache, locked exclusively, as a context manager: to extract or remove it."""

    def __init__(self, cache: Path, key: str) -> None:
        self.folder = cache / key
        self._record = cache / f"{key}.json"
        self._descriptor = -1

    def lock(self) -> bool:
        """Takes the lock; False if another process has the entry. Raises OSError."""
        while True:
            descriptor = os.open(self._record, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            if _same_file(descriptor, self._record):
                self._descriptor = descriptor
                return True
            os.close(descriptor)  # it was removed meanwhile

    def wait(self) -> None:
        """Waits while another process extracts, but not for servers that use the entry."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self._record, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            finally:
                os.close(descriptor)

    def __enter__(self) -> Entry:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def record(self) -> dict[str, Any] | None:
        """The origin of the environment; None if it is not complete."""
        return _read(self._descriptor)

    def idle_seconds(self) -> float:
        """How long ago a server last began to use it."""
        return time.time() - os.fstat(self._descriptor).st_mtime

    def begin(self) -> None:
        """Makes an empty folder; the rest of an interrupted extraction is removed."""
        self._clear()
        self.folder.mkdir(mode=0o755)

    def complete(self, record: dict[str, Any]) -> None:
        """Writes the record: from here on the environment is used."""
        os.pwrite(self._descriptor, json.dumps(record).encode(), 0)

    def remove(self) -> None:
        self._clear()
        self._record.unlink()

    def _clear(self) -> None:
        os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)


def clean(cache: Path, source: str, key: str) -> list[str]:
    """Removes older entries of `source`, unused ones and interrupted ones; returns their names.

    Entries in use stay. Raises nothing: this is housekeeping.
    """
    removed = []
    for path in cache.glob("*.json"):
        if path.stem == key:
            continue
        entry = Entry(cache, path.stem)
        with contextlib.suppress(OSError):
            if not entry.lock():
                continue
            with entry:
                record = entry.record()
                if record is None or record.get("source") == source or entry.idle_seconds() > UNUSED_DAYS * 86400:
                    entry.remove()
                    removed.append(path.stem)
    return removed


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> dict[str, Any] | None:
    try:
        record = json.loads(os.pread(descriptor, 1 << 16, 0))
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
