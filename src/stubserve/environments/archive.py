"""Extracting the archive of an environment: fast, and only ever into its own folder.

Every entry is checked before it is written, and symbolic links are made last. So while files are written the tree has
no links, each path leads where it says, and no entry needs a look at the file system (`tarfile`'s filters resolve each
path, which takes longer than writing a small file). In the end each link must lead to a place inside the tree, with one
exception: `bin/python` of a virtual environment points to the Python that it was made with. Nothing is written through
it.

Errors begin with the text of upstream, which extracts with libarchive, and go on with advice.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from isal import igzip_threaded, isal_zlib

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# An environment shrinks to a half or a tenth. An archive that grows much more is made to fill the disk.
MAX_RATIO = 200
FREE_BYTES = 1 << 30
MAX_ENTRIES = 5_000_000
MAX_HEADER = 1 << 20

_CHUNK = 1 << 20

_INTERPRETER_LINK = re.compile(r"bin/(python|pypy)[0-9.]*")
# The errors of decompressors for foreign bytes, and of tarfile for endless headers
_BROKEN: tuple[Any, ...] = (
    EOFError,
    ValueError,
    zlib.error,
    isal_zlib.error,
    lzma.LZMAError,
    zstd.ZstdError,
    RecursionError,
)


class ArchiveRefused(Exception):
    """An archive that cannot be extracted, or must not be. The text has its name and the reason."""


class _Stream:
    """The decompressed archive, read forwards only. Counts bytes, and refuses more than an honest archive has.

    `tarfile` reads headers with `read` and keeps them in memory; newer Pythons read long ones in pieces. So their sum
    is limited: `header_left` is set before an entry's headers are read, and is None while its content is.
    """

    def __init__(self, raw: IO[bytes], archive: Path, size: int) -> None:
        self._raw = raw
        self._archive = archive
        self._limit = max(size * MAX_RATIO, FREE_BYTES)
        self._position = 0
        self.header_left: int | None = MAX_HEADER

    def read(self, count: int) -> bytes:
        if self.header_left is not None:
            self.header_left -= count
            if self.header_left < 0:
                raise ArchiveRefused(
                    f"{self._archive} has a header of more than {MAX_HEADER} bytes: it is damaged, or made to do harm."
                )
        return self.take(count)

    def take(self, count: int) -> bytes:
        """The next bytes, headers or not."""
        data = self._raw.read(count)
        self.grow(len(data))
        self._position += len(data)
        return data

    def grow(self, count: int) -> None:
        """Counts bytes of the decompressed archive. Raises ArchiveRefused when they are too many."""
        self._limit -= count
        if self._limit < 0:
            raise ArchiveRefused(
                f"{self._archive} expands to more than {MAX_RATIO} times its size: extraction is stopped before it "
                "fills the disk. If it really is an environment, extract it yourself and give the directory."
            )

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        while self._position < position:
            if not self.take(min(position - self._position, _CHUNK)):
                break
        return self._position


class _Gunzipped(io.RawIOBase):
    """The decompressed bytes of a thread, to their end.

    isal's reader stops when it has found nothing for 10 ms and then sees that its thread is done. Bytes that the thread
    has written in between are missed, so a whole archive would be cut off where cores are scarce.
    """

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        reader = self._opened.raw
        count: int = reader.readinto(into)
        while not count and not reader.eof:
            count = reader.readinto(into)
        return count

    def close(self) -> None:
        self._opened.close()
        super().close()


def _open(file: IO[bytes]) -> Any:
    """The stream of a tar file inside an open file, decompressed by the format of its first bytes."""
    head = file.read(6)
    file.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(_Gunzipped(igzip_threaded.open(file, "rb", threads=1)))  # type: ignore[no-untyped-call]
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return zstd.ZstdFile(file)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(file)
    return file


def extract(archive: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Extracts a tar file, plain or compressed with gzip, zstd, bzip2 or xz, into an empty folder.

    `progress` is called now and then with the number of bytes that have been read of the archive, and its size. Modes
    keep only permissions, the owner is the caller, times are kept: Python uses byte code only beside a source of the
    same time. The process's umask must not be stricter than 022. Raises ArchiveRefused; the folder is then to be
    removed.
    """
    try:
        with archive.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # Closed in any case: a thread decompresses gzip, and the process would wait for it.
            with contextlib.closing(_open(file)) as decompressed:
                stream = _Stream(decompressed, archive, size)
                try:
                    tar = tarfile.TarFile(fileobj=stream, encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
                except (tarfile.TarError, OSError, *_BROKEN) as error:
                    raise ArchiveRefused(
                        f"archive_read_open_filename() failed. {archive} is not a tar file, nor one compressed with "
                        f"gzip, zstd, bzip2 or xz, or it is damaged ({error})."
                    ) from None
                _Extraction(archive, folder, stream, lambda: progress(file.tell(), size)).run(tar)
    except tarfile.TarError as error:
        raise ArchiveRefused(
            f"archive_read_next_header() failed with error code = -30 error message is {error}. {archive} is damaged."
        ) from None
    except _BROKEN as error:
        raise _damaged(archive, error) from None
    except OSError as error:
        if error.errno is None:  # not from the system: gzip and bz2 report damage this way
            raise _damaged(archive, error) from None
        place = folder if error.filename is None or str(error.filename).startswith(str(folder)) else archive
        raise ArchiveRefused(f"cannot extract {archive}: {error.strerror or error} ({place})") from None


def _damaged(archive: Path, error: Exception) -> ArchiveRefused:
    return ArchiveRefused(
        f"archive_read_data_block() failed with error code = -30 error message is {error}. {archive} is damaged or was "
        "not copied completely."
    )


class _Extraction:
    """The extraction of one archive to one folder."""

    def __init__(self, archive: Path, folder: Path, stream: _Stream, progress: Callable[[], None]) -> None:
        self._archive = archive
        self._root = str(folder)
        self._stream = stream
        self._progress = progress
        self._unreported = 0
        self._directories = {""}
        self._links: dict[str, str] = {}

    def run(self, tar: tarfile.TarFile) -> None:
        count = 0
        while (entry := self._next(tar)) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep every header that it has read
            count += 1
            if count > MAX_ENTRIES:
                raise ArchiveRefused(f"{self._archive} has more than {MAX_ENTRIES} entries.")
            self._extract(tar, entry)
        self._make_links()

    def _next(self, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        self._stream.header_left = MAX_HEADER
        entry = tar.next()
        self._stream.header_left = None
        return entry

    def _extract(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        path = self._checked(entry.name)
        if not path:
            return
        if entry.isdir():
            self._make_directory(path, path)
            return
        self._make_directory(path.rpartition("/")[0], path)
        if path in self._directories:
            raise self._refused(path, "Can't replace existing directory with non-directory")
        if entry.issym():
            self._links[path] = entry.linkname
        elif entry.islnk():
            self._link(path, self._checked(entry.linkname))
        elif entry.isfile():
            self._links.pop(path, None)
            self._write(tar, entry, os.path.join(self._root, path))
        else:
            kind = "a pipe" if entry.isfifo() else "a device" if entry.isdev() else f"of type {entry.type!r}"
            raise self._refused(path, f"The entry is {kind}, which no environment has")

    def _refused(self, path: str, why: str) -> ArchiveRefused:
        text = f"archive_write_header() failed with error code = -25 error message is {why}"
        return ArchiveRefused(f"{text}: entry '{path}' of {self._archive}.")

    def _checked(self, name: str) -> str:
        """An entry's path below the folder, without `.` parts; empty for the folder itself. Raises ArchiveRefused."""
        if name.startswith("/"):
            raise self._refused(name, "Path is absolute")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self._refused(name, "Path contains '..'")
        return "/".join(parts)

    def _make_directory(self, path: str, entry: str) -> None:
        if path in self._directories:
            return
        if path in self._links:
            raise self._refused(entry, f"Cannot extract through symlink {entry}")
        self._make_directory(path.rpartition("/")[0], entry)
        os.mkdir(os.path.join(self._root, path), 0o755)
        self._directories.add(path)

    def _link(self, path: str, target: str) -> None:
        source, place = os.path.join(self._root, target), os.path.join(self._root, path)
        if target in self._links:
            # The same link a second time. It may be in another folder, where a relative link leads elsewhere: then it
            # was no hard link, and the check of the links will refuse it.
            self._links[path] = self._links[target]
        elif source != place:
            if not os.path.isfile(source):
                raise self._refused(path, f"Hard-link target '{target}' does not exist.")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
            os.link(source, place)

    def _write(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, place: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        mode = entry.mode & 0o755 | 0o600
        try:
            descriptor = os.open(place, flags, mode)
        except FileExistsError:  # a later entry of the same name is a newer version of the file
            os.unlink(place)
            descriptor = os.open(place, flags, mode)
        try:
            self._copy(tar, entry, descriptor)
            os.utime(descriptor, (entry.mtime, entry.mtime))
        finally:
            os.close(descriptor)

    def _copy(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, descriptor: int) -> None:
        left = entry.size
        if entry.issparse():
            holes: Any = tar.extractfile(entry)
            read = holes.read
        else:
            read = self._stream.take
            self._stream.seek(entry.offset_data)
        while left:
            data = read(min(left, _CHUNK))
            if not data:
                raise EOFError(f"'{entry.name}' ends early")
            if entry.issparse():
                self._stream.grow(len(data))
            left -= len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            self._unreported += len(data)
            if self._unreported >= 16 << 20:
                self._unreported = 0
                self._progress()

    def _make_links(self) -> None:
        for path, target in self._links.items():
            place = os.path.join(self._root, path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
            os.symlink(target, place)
        root = os.path.realpath(self._root)
        for path, target in self._links.items():
            leads_to = os.path.realpath(os.path.join(root, path))
            inside = leads_to == root or leads_to.startswith(root + "/")
            if not inside and _INTERPRETER_LINK.fullmatch(path) is None:
                raise self._refused(path, f"Symlink leads out of the environment, to '{target}'")
