"""The program that puts an archive into the cache: `python -m stubserve.environments.prepare ARCHIVE CACHE KEY`.

It is a process of its own, so that the server goes on serving (extracting is much work for Python), can kill it, and is
not affected by a damaged archive. It writes lines of JSON to stdout: {"waiting": true} while another server works on
the same entry, {"extracting": true}, {"done": bytes, "of": bytes}, {"removed": [keys]}, and at the end {"ready": true}
or {"failed": text}. When the server is gone, the next line ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stubserve_stub.runtime import confinement

from stubserve.environments.archive import ArchiveRefused, extract
from stubserve.environments.cache import Entry, clean, key_of, lease, make_folder

_MEMORY_BYTES = 4 << 30
_UNPACK_TIMEOUT_S = 600


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def prepare(archive: Path, cache: Path, key: str) -> None:
    """Extracts the archive unless another process has done it meanwhile. Raises ArchiveRefused, OSError."""
    make_folder(cache)
    entry = Entry(cache, key)
    while not entry.lock():
        say(waiting=True)
        entry.wait()
        if lease(cache, key) is not None:
            return
    with entry:
        if entry.record() is not None and entry.folder.is_dir():
            return
        say(extracting=True)
        start = time.monotonic()
        entry.begin()
        try:
            extract(archive, entry.folder, lambda done, size: say(done=done, of=size))
            _relocate(entry.folder)
            if key_of(archive) != key:
                raise ArchiveRefused(f"{archive} has changed while it was extracted. Load the model again.")
        except BaseException:
            with contextlib.suppress(OSError):
                entry.remove()
            raise
        _sync(entry.folder)
        entry.complete({"source": str(archive), "seconds": round(time.monotonic() - start, 1)})
    removed = clean(cache, str(archive), key)
    if removed:
        say(removed=removed)


def _relocate(folder: Path) -> None:
    """Runs the script that conda-pack leaves in its archives: it writes the environment's new place into its files.

    If the kernel can, it keeps the script from writing elsewhere, as a model may be able to change the archive.
    """
    script = folder / "bin" / "conda-unpack"
    if not script.exists():
        return
    interpreter = folder / "bin" / "python"
    # Not the server's modules for another Python
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    command: list[str | Path] = [interpreter, script]
    if confinement.landlock_version():
        command[:0] = [sys.executable, "-I", "-S", confinement.__file__]
        words = (confinement.NO_NEW_PRIVILEGES, confinement.NO_NETWORK, confinement.FILES)
        writable = (f"{confinement.WRITABLE} {place}" for place in (folder, "/dev"))
        variables[confinement.VARIABLE] = "\n".join([*words, *writable])
    try:
        done = subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_UNPACK_TIMEOUT_S,
        )
    except OSError:
        return  # this Python does not run here; its stub will fail, and the server then explains
    except subprocess.TimeoutExpired:
        raise ArchiveRefused(f"'{script}' has not ended after {_UNPACK_TIMEOUT_S} s.") from None
    if done.returncode == confinement.CANNOT_RUN:
        return  # as above
    if done.returncode:
        raise ArchiveRefused(
            f"conda-unpack of the environment failed with exit code {done.returncode}: {done.stderr.strip()[-2000:]}"
        )


def _sync(folder: Path) -> None:
    """Makes the kernel write the extracted files to the disk before the record counts them as complete."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    archive, cache, key = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Against an archive with headers, or a compression, that need any amount of memory.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        prepare(archive, cache, key)
    except ArchiveRefused as refused:
        say(failed=str(refused))
    except MemoryError:
        say(failed=f"{archive} needs too much memory to be extracted: it is damaged, or made to do harm.")
    except OSError as error:
        say(failed=f"cannot extract {archive} into the cache {cache}: {error}")
    else:
        say(ready=True)


if __name__ == "__main__":
    main()
