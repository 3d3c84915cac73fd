"""Rights that the operator takes from stubs: their user, a limit on memory, files to write, the network; secrets.

A sandbox is set up by the server's own interpreter, which then turns into the model's interpreter. A model may write to
an environment in its own folder, and an interpreter runs code of its environment before its program.
"""

from __future__ import annotations

import contextlib
import fnmatch
import grp
import hashlib
import logging
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import stubserve_stub.runtime.confinement
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

from stubserve.environments.environment import Environment
from stubserve.errors import Unusable, internal
from stubserve.settings.groups import WITHHELD, InstanceSettings, VariableRule

log = logging.getLogger("stubserve.server")

# `-I -S`: nothing but the interpreter and its library
_CONFINED = (sys.executable, "-I", "-S", stubserve_stub.runtime.confinement.__file__)


@dataclass(frozen=True, slots=True)
class User:
    """The user that stubs run as: `numbers` of the user, its group and its other groups."""

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
    """The confinement of all stubs. `memory` is in bytes, 0 for no limit; `writable` is used with the sandbox `files`.

    With `files`, each model has its own folder for temporary files in `temporary`. `rules` decide which variables of
    the server's environment stubs see.
    """

    user: User | None = None
    memory: int = 0
    sandbox: frozenset[str] = frozenset()
    writable: tuple[str, ...] = ()
    new_privileges: bool = False
    temporary: Path | None = None
    rules: tuple[VariableRule, ...] = WITHHELD

    def confine(self, environment: Environment, model_dir: Path, model: str) -> Environment:
        """The environment for the stubs of the model in this folder. Raises ServeError."""
        variables: dict[str, str | None] = dict.fromkeys(withheld(self.rules, model, os.environ))
        lines = [] if self.new_privileges else [NO_NEW_PRIVILEGES]
        if self.memory:
            lines.append(f"{MEMORY} {self.memory}")
        if "network" in self.sandbox:
            lines.append(NO_NETWORK)
        if self.temporary is not None:
            temporary = variables["TMPDIR"] = self._temporary_of(self.temporary, model_dir)
            # Devices: /dev/null, /dev/shm, terminals, GPUs. Their own permissions decide about their use.
            folders = (str(model_dir.resolve()), temporary, "/dev", *self.writable)
            lines += [FILES, *(f"{WRITABLE} {folder}" for folder in folders)]
        variables[VARIABLE] = "\n".join(lines)
        if self.user is not None:
            variables.update(self.user.variables)
        return replace(
            environment,
            variables={**environment.variables, **variables},
            before=_CONFINED if self.sandbox else (),
            user={} if self.user is None else self.user.arguments,
        )

    def close(self) -> None:
        """Removes what models have left in their temporary folders."""
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def _temporary_of(self, home: Path, model_dir: Path) -> str:
        """The folder for temporary files of one model. Its name is short, as paths of sockets must be."""
        folder = home / hashlib.blake2b(os.fsencode(model_dir), digest_size=6).hexdigest()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.user is not None:
                os.chown(folder, self.user.uid, self.user.gid)
        except OSError as error:
            raise internal(f"there is no folder for its temporary files: {folder}: {error.strerror}") from None
        return str(folder)


def withheld(rules: Sequence[VariableRule], model: str, names: Iterable[str]) -> list[str]:
    """The variables that a model does not see; the last rule that fits counts."""
    rules = [rule for rule in reversed(rules) if rule.model in ("", model)]
    fitting = {name: next((one for one in rules if fnmatch.fnmatchcase(name, one.pattern)), None) for name in names}
    return sorted(name for name, rule in fitting.items() if rule is not None and not rule.shown)


def confinement(settings: InstanceSettings) -> Confinement:
    """The confinement that the flags demand. Raises OSError, or Unusable if it is impossible here."""
    sandbox = settings.stub_sandbox
    version = landlock_version() if sandbox else 0
    if sandbox and not version:
        raise Unusable(
            f"--stub-sandbox={','.join(sorted(sandbox))}: this kernel has no Landlock (Linux 5.13 or newer, with "
            "landlock among lsm=). Leave the flag out, and use a container or --stub-user"
        )
    if "network" in sandbox and version < NETWORK_VERSION:
        raise Unusable(
            f"--stub-sandbox=network: this kernel's Landlock (version {version}) cannot forbid TCP; Linux 6.7 can"
        )
    if sandbox and settings.stub_new_privileges:
        raise Unusable(
            "--stub-sandbox and --stub-new-privileges exclude each other: a process that may use sudo is not confined"
        )
    user = _user(settings.stub_user) if settings.stub_user else None
    folders = tuple(str(folder.absolute()) for folder in settings.stub_writable)
    rules = (*WITHHELD, *settings.stub_env)
    names = withheld(rules, "", os.environ)
    if names:
        log.info("models do not see %s of the server's environment; --stub-env=NAME shows them one", ", ".join(names))
    temporary = None
    if "files" in sandbox:
        temporary = Path(tempfile.mkdtemp(prefix="stubserve-stubs-"))
        temporary.chmod(0o711)
    return Confinement(
        user, settings.stub_memory_limit, sandbox, folders, settings.stub_new_privileges, temporary, rules
    )


def _user(name: str) -> User | None:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise Unusable(f"--stub-user={name}: there is no such user") from None
    if found.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise Unusable(f"--stub-user={name}: only a server that runs as root can run stubs as somebody else")
    groups: set[int] = set()
    with contextlib.suppress(OSError):
        groups = {group.gr_gid for group in grp.getgrall() if name in group.gr_mem}
    return User(name, found.pw_dir, found.pw_uid, found.pw_gid, tuple(sorted(groups)))
