"""What the operator has stubs give up: another user, a limit on memory, what may be written, the network."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubserve_stub.runtime.confinement import (
    FILES,
    MEMORY,
    NETWORK_VERSION,
    NO_NETWORK,
    NO_NEW_PRIVILEGES,
    VARIABLE,
    WRITABLE,
    landlock_version,
)

from stubserve.settings import InstanceSettings


class ConfinementError(Exception):
    """Stubs cannot be confined as the operator wants it; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class User:
    """Whom stubs run as: `numbers` of the user, its group and its other groups."""

    name: str
    home: str
    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `subprocess.Popen`."""
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups}


@dataclass(frozen=True, slots=True)
class Confinement:
    """How all stubs are confined. `memory` is in bytes, 0 for no limit; `writable` counts with the sandbox `files`."""

    user: User | None = None
    memory: int = 0
    sandbox: frozenset[str] = frozenset()
    writable: tuple[str, ...] = ()
    new_privileges: bool = False

    def variables(self, model_dir: Path) -> dict[str, str]:
        """What is added to the environment of a stub of the model in this folder."""
        lines = [] if self.new_privileges else [NO_NEW_PRIVILEGES]
        if self.memory:
            lines.append(f"{MEMORY} {self.memory}")
        if "network" in self.sandbox:
            lines.append(NO_NETWORK)
        if "files" in self.sandbox:
            # Devices: /dev/null, /dev/shm, terminals, GPUs. Who may use which is said by their own permissions.
            folders = (str(model_dir.resolve()), tempfile.gettempdir(), "/dev", *self.writable)
            lines += [FILES, *(f"{WRITABLE} {folder}" for folder in folders)]
        return {VARIABLE: "\n".join(lines), **({} if self.user is None else self.user.variables)}


def confinement(settings: InstanceSettings) -> Confinement:
    """As the flags say it. Raises ConfinementError where this machine or this user cannot do it."""
    sandbox = settings.stub_sandbox
    version = landlock_version() if sandbox else 0
    if sandbox and not version:
        raise ConfinementError(
            f"--stub-sandbox={','.join(sorted(sandbox))}: this kernel has no Landlock (Linux 5.13 or newer, with "
            "landlock among lsm=). Leave the flag out, and use a container or --stub-user"
        )
    if "network" in sandbox and version < NETWORK_VERSION:
        raise ConfinementError(
            f"--stub-sandbox=network: this kernel's Landlock (version {version}) cannot forbid TCP; Linux 6.7 can"
        )
    if sandbox and settings.stub_new_privileges:
        raise ConfinementError(
            "--stub-sandbox and --stub-new-privileges exclude each other: a process that may use sudo is not confined"
        )
    user = _user(settings.stub_user) if settings.stub_user else None
    folders = tuple(str(folder.absolute()) for folder in settings.stub_writable)
    return Confinement(user, settings.stub_memory_limit, sandbox, folders, settings.stub_new_privileges)


def _user(name: str) -> User | None:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ConfinementError(f"--stub-user={name}: there is no such user") from None
    if found.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise ConfinementError(f"--stub-user={name}: only a server that runs as root can run stubs as somebody else")
    groups: set[int] = set()
    with contextlib.suppress(OSError):
        groups = {group.gr_gid for group in grp.getgrall() if name in group.gr_mem}
    return User(name, found.pw_dir, found.pw_uid, found.pw_gid, tuple(sorted(groups)))
