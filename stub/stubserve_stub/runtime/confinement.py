"""The rights that a stub gives up before it runs code of its model, by prctl, setrlimit and Landlock.

- No new privileges: processes that a model starts can gain none (sudo and other set-user-ID programs run as the stub's
  user).
- A limit on the memory that is the stub's own (RLIMIT_DATA: heap, arrays, stacks of threads; not the arena, nor files
  that are mapped). A process that asks for more gets a MemoryError.
- Files: with Landlock files can be written, made or removed only in some folders; reading is not affected.
- Network: with Landlock the stub cannot connect or listen over TCP, nor connect to abstract Unix sockets of others
  where the kernel can forbid that. Landlock does not know other sockets.
- With either of these Landlock also keeps the stub from tracing other processes (their memory, their descriptors) and,
  where the kernel can, from sending them signals. Capabilities of root go around that (CAP_PERFMON reads the
  environment of any process), so a stub that runs as root keeps only those of a container's root.

Landlock covers the calling thread and all that it starts later, so this is done first of all. An environment variable
says what to do, a line for each thing. None of it can be undone, not by the model's children either.

As a program this file confines itself and becomes another one: `python -I -S <this file> PROGRAM ARGUMENTS...`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from typing import List, Tuple

VARIABLE = "STUBSERVE_CONFINEMENT"

# The exit status of this file as a program where the other one cannot be run, as in shells
CANNOT_RUN = 127

# The first words of lines
NO_NEW_PRIVILEGES, MEMORY, FILES, WRITABLE, NO_NETWORK = (
    "no-new-privileges",
    "memory",
    "files",
    "writable",
    "no-network",
)

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
# Capabilities for files and users, ports below 1024, raw sockets, locked memory and chroot. None makes devices.
_KEPT = frozenset((0, 1, 3, 4, 5, 6, 7, 10, 13, 14, 18))
# The same numbers on all architectures
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
# Changes of files: write; remove folders and files; make devices, folders, files, sockets, pipes, links. Versions 2 and
# 3 of Landlock add: move between folders, truncate.
_WRITE_FILE = 1 << 1
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_MOVE, _TRUNCATE = 1 << 13, 1 << 14
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
# The first versions of Landlock that know TCP, and processes outside the sandbox
NETWORK_VERSION = 4
SCOPE_VERSION = 6


def landlock_version() -> int:
    """The version of Landlock that the kernel has, 0 for none (too old, or not among `lsm=`)."""
    return max(int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)), 0)


def confine() -> None:
    """Gives up the rights that the variable names, and removes it. Raises OSError where the kernel refuses."""
    lines = [line.partition(" ") for line in os.environ.pop(VARIABLE, "").splitlines()]
    words = [word for word, _, _ in lines]
    for word, _, value in lines:
        if word == MEMORY:
            resource.setrlimit(resource.RLIMIT_DATA, (int(value), int(value)))
    if NO_NEW_PRIVILEGES in words:
        _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    if FILES in words or NO_NETWORK in words:
        for number in set(range(64)) - _KEPT:
            # Takes effect with the next program. A process that is not root may not do this, and needs not.
            _libc().prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
        _landlock(FILES in words, [value for word, _, value in lines if word == WRITABLE], NO_NETWORK in words)


def _landlock(files: bool, writable: List[str], no_network: bool) -> None:
    version = landlock_version()
    changes, network = _rights(version)
    attributes = struct.pack("=Q", changes if files else 0)
    if version >= NETWORK_VERSION:
        attributes += struct.pack("=Q", network if no_network else 0)
    if version >= SCOPE_VERSION:
        attributes += struct.pack("=Q", _SIGNALS | (_ABSTRACT_SOCKETS if no_network else 0))
    libc = _libc()
    rules = _check(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "Landlock's rules")
    try:
        for path in writable if files else ():
            try:
                folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # a missing folder cannot be written to
            try:
                allowed = changes if os.path.isdir(path) else changes & (_WRITE_FILE | _TRUNCATE)
                rule = struct.pack("=Qi", allowed, folder)
                _check(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0), "a rule for " + path)
            finally:
                os.close(folder)
        _check(libc.syscall(_RESTRICT_SELF, rules, 0), "Landlock")
    finally:
        os.close(rules)


def _rights(version: int) -> Tuple[int, int]:
    """What this version can forbid: (of files, of the network)."""
    changes = _CHANGES | (_MOVE if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    return changes, _BIND_TCP | _CONNECT_TCP if version >= NETWORK_VERSION else 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the stub cannot be confined: {what}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    confine()
    try:
        os.execv(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]} cannot be run: {error.strerror}\n")
        sys.exit(CANNOT_RUN)
