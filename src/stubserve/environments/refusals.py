"""Refusals of the system in words with a remedy: limits of the process, and permissions."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path


def explained(error: OSError) -> str:
    """The system's text for an error; for a limit of the process, its name and how to raise it."""
    reason = error.strerror or str(error)
    if error.errno == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"{reason}: this process may have {soft} files open (ulimit -n; the most is {_named(hard)}). Each instance "
            "takes about seven, each connection one. Raise the limit, or serve fewer instances."
        )
    if error.errno == errno.ENFILE:
        return f"{reason}: the system's limit of open files is reached (fs.file-max)."
    if error.errno == errno.EFBIG:
        soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        return (
            f"{reason}: a file may have {_named(soft)} bytes at most (ulimit -f). Shared memory counts as a file, of "
            "--shm-limit bytes and more. Start the server without that limit: ulimit -f unlimited."
        )
    return reason


def blocked(path: Path) -> str:
    """The reason why this user cannot reach a file or a folder; empty if there is none, or if the file is missing."""
    path = path.absolute()
    for folder in reversed(path.parents):
        try:
            found = folder.stat()
        except OSError:
            return ""  # the folder before would have been blocked
        if not os.access(folder, os.X_OK):
            return (
                f"{_user()} may not enter '{folder}' (mode {stat.S_IMODE(found.st_mode):04o}, of user {found.st_uid}), "
                "where it lies. Allow it (chmod a+x), or put it elsewhere."
            )
    return ""


def unreadable(path: Path) -> str:
    """The reason why this user cannot read a file; empty if there is none, or if the file is missing."""
    text = blocked(path)
    if text or not path.exists() or os.access(path, os.R_OK):
        return text
    found = path.stat()
    return (
        f"{_user()} may not read it (mode {stat.S_IMODE(found.st_mode):04o}, of user {found.st_uid}). "
        f"Allow it: chmod a+r '{path}'."
    )


def _user() -> str:
    return f"the server's user ({os.geteuid()})"


def _named(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
