"""A repository in the cloud as folders on this machine, from which it is served like any other.

    <cache>/<address>/objects/<key>            contents, by address, path, size and tag: kept from one run to the next
    <cache>/<address>/fetching/<key>        held by the server that fetches objects of a model
    <cache>/<address>/servers/<n>/lock         held by the server whose folder this is
    <cache>/<address>/servers/<n>/copies/<c>/  one state of one model: hard links to objects
    <cache>/<address>/servers/<n>/models/<m>   link to the copy that is current

Guarantees:

- An object whose tag, size and time are the same is fetched once, also across restarts and for several servers.
- A copy is one state of a model: the model is listed before and after the fetch, and fetched again if the lists differ.
  A serving model keeps its copy until it is gone (the load holds `ModelCopy`).
- A store that fails, is slow, or is gone changes nothing of the copies.

Costs: a listing per look and model, of one request for up to 1,000 objects with S3.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

from stubserve.environments.cache import default_folder
from stubserve.errors import internal, not_found, unavailable
from stubserve.repository.cloud.store import Stamp, Store, parse_address
from stubserve.repository.daemon_threads import Latest, for_all
from stubserve.repository.folder import model_names

log = logging.getLogger("stubserve.repository")

# How often a model is listed until it stays the same, and the pause in between
_TRIES = 5
_PAUSE_S = 0.5
_AT_ONCE = 8
UNUSED_DAYS = 30


class ModelCopy:
    """One state of a model. Its folder is removed with its last reference."""

    def __init__(self, folder: Path, listing: Mapping[str, Stamp]) -> None:
        self.folder = folder
        self.listing = dict(listing)
        # In a thread: the last reference may be in the event loop.
        self._end = weakref.finalize(self, _remove_soon, folder)
        self._end.atexit = False


class Mirror:
    """One repository. All methods except `close` block, and are for threads."""

    def __init__(self, store: Store, address: str, cache: Path) -> None:
        self._store = store
        self.address = address
        self._home = cache / hashlib.blake2b(address.encode(), digest_size=12).hexdigest()
        self._objects = self._home / "objects"
        self._copies: dict[str, ModelCopy] = {}
        self._guards: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._known: list[str] | None = None
        self._looks = Latest(self._refresh_all)
        try:
            self._own = self._begin()
        except OSError as error:
            raise internal(f"repository '{address}' cannot be copied to {cache}: {error.strerror}") from None
        self.models = self._own / "models"

    def names(self) -> list[str]:
        """The names of the models; the last known ones if the store fails. Raises ServeError the first time."""
        try:
            # Before a name becomes part of a path
            self._known = model_names(self._store.names(), self.address)
        except Exception as error:
            if self._known is None:
                raise
            log.warning("%s. The last known state of it is used", error)
        return self._known

    def refresh(self, name: str) -> ModelCopy:
        """The model as it is in the store now. Raises ServeError; then the last copy stays."""
        with self._guard:
            guard = self._guards.setdefault(name, threading.Lock())
        with guard:
            for left in range(_TRIES, 0, -1):
                listing = self._store.listing(name)
                if not listing:
                    self._drop(name)
                    raise not_found("model not found in any model repository")
                copy = self._copies.get(name)
                if copy is not None and copy.listing == listing:
                    return copy
                copy = self._copy(name, listing)
                if copy is not None:
                    return copy
                if left > 1:
                    log.info("'%s' of %s changes while it is copied, and is copied again", name, self.address)
                    time.sleep(_PAUSE_S)
        raise unavailable(f"'{name}' of repository '{self.address}' changes all the time while it is copied")

    def look(self, patience_s: float) -> None:
        """Refreshes every model. Except the first time, the wait is limited, and the refresh goes on meanwhile.

        Models that cannot be copied stay the same, and the log has the reason. Raises ServeError the first time.
        """
        if not self._looks.run(patience_s if self._known is not None else threading.TIMEOUT_MAX):
            log.info("repository '%s' is still being read; the last known state of it is used", self.address)

    def _refresh_all(self) -> None:
        names = self.names()
        for name in self._copies.keys() - set(names):
            self._drop(name)
        for_all(names, self._try_refresh, _AT_ONCE)

    def copy_of(self, name: str) -> ModelCopy | None:
        """The last copy, None if the model has not been copied."""
        return self._copies.get(name)

    def close(self) -> None:
        """The end: the folders of this server are removed, the objects stay."""
        self._copies.clear()
        shutil.rmtree(self._own, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def _try_refresh(self, name: str) -> None:
        try:
            self.refresh(name)
        except Exception as error:
            log.error("failed to copy model '%s' of %s: %s", name, self.address, error)

    def _copy(self, name: str, listing: Mapping[str, Stamp]) -> ModelCopy | None:
        """Makes the state of a listing the current one; None if the store has changed meanwhile."""
        if all((self._objects / self._key(name, path, stamp)).exists() for path, stamp in listing.items()):
            return self._fetched_copy(name, listing)
        # Servers that start together wait for the first one, and then find the objects.
        with self._fetching(name):
            return self._fetched_copy(name, listing)

    def _fetched_copy(self, name: str, listing: Mapping[str, Stamp]) -> ModelCopy | None:
        fetched: dict[str, Path] = {}
        try:
            for path, stamp in listing.items():
                key = self._key(name, path, stamp)
                if not (self._objects / key).exists():
                    fetched[key] = self._fetch(name, path)
            # The fetched files are those of the listing only if the listing still holds.
            if fetched and self._store.listing(name) != listing:
                return None
            for path, stamp in listing.items():
                file = fetched.get(self._key(name, path, stamp))
                if file is not None and file.stat().st_size != stamp.size:
                    return None
            for key, file in fetched.items():
                os.replace(file, self._objects / key)
        except OSError as error:
            raise internal(f"'{name}' of repository '{self.address}' cannot be copied: {error.strerror}") from None
        finally:
            for file in fetched.values():
                file.unlink(missing_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="copy-", dir=self._own / "copies")) / name
        for path, stamp in listing.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            source = self._objects / self._key(name, path, stamp)
            os.utime(source, ns=(time.time_ns(), source.stat().st_mtime_ns))  # the time marks it as in use
            try:
                os.link(source, target)
            except OSError:  # a file system without hard links, or too many of them
                shutil.copy2(source, target)
        link = self.models / f".{name}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        os.replace(link, self.models / name)
        copy = self._copies[name] = ModelCopy(folder, listing)
        return copy

    @contextlib.contextmanager
    def _fetching(self, name: str) -> Iterator[None]:
        """Lets one server of this machine at a time fetch what belongs to a model. The end of a server is enough."""
        file = self._home / "fetching" / hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
        try:
            descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise internal(f"'{file}' cannot be made: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _fetch(self, name: str, path: str) -> Path:
        descriptor, text = tempfile.mkstemp(prefix=".fetching-", dir=self._objects)
        os.close(descriptor)
        try:
            self._store.fetch(name, path, Path(text))
        except BaseException:
            os.unlink(text)
            raise
        return Path(text)

    def _drop(self, name: str) -> None:
        self._copies.pop(name, None)
        (self.models / name).unlink(missing_ok=True)

    def _key(self, name: str, path: str, stamp: Stamp) -> str:
        text = f"{name}/{path}\0{stamp.size}\0{stamp.tag}"
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()

    def _begin(self) -> Path:
        """Makes the folder of this server, and removes those of servers that are gone. Raises OSError."""
        servers = self._home / "servers"
        for folder in (self._objects, self._home / "fetching", servers):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in servers.iterdir():
            if _is_left_behind(other):
                shutil.rmtree(other, ignore_errors=True)
        self._remove_unused()
        own = Path(tempfile.mkdtemp(dir=servers))
        self._lock = os.open(own / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for part in ("copies", "models"):
            (own / part).mkdir()
        return own

    def _remove_unused(self) -> None:
        before = time.time() - UNUSED_DAYS * 86400
        for file in self._objects.iterdir():
            with contextlib.suppress(OSError):
                status = file.stat()
                if status.st_atime < before and status.st_nlink == 1:
                    file.unlink()


def _is_left_behind(folder: Path) -> bool:
    """Whether the server of a folder is gone. A server that is just starting has no lock yet."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > 60
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove_soon(folder: Path) -> None:
    threading.Thread(target=shutil.rmtree, args=(folder.parent, True), daemon=True).start()


# Upstream's variables for the folder of a provider's copies
_MOUNTS = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "abfs": "TRITON_AZURE_MOUNT_DIRECTORY",
}


def open_mirror(text: str, cache: Path | None) -> Mirror:
    """The repository at an address. Copies go below `cache`, else to upstream's folder. Raises ServeError."""
    address = parse_address(text, os.environ)
    mount = os.environ.get(_MOUNTS[address.protocol])
    return Mirror(Store(address), text, cache or (Path(mount) if mount else default_folder("repositories")))
