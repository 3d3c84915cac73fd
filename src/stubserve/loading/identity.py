"""The part of a response cache's key that stands for a model version: everything that its answers depend on.

A cache of this server alone takes a new number with each load, since a load means that something may be different. A
cache that several servers share, and that outlives them, needs an identity that is the same everywhere. It is a digest
of the configuration (without what may change while it serves), of the contents of the version's folder, and of the
program if it is a backend's; for an ensemble, of its members' identities instead. For a moment a member may be newer
than its ensemble, and a stub may have found other files than those that were read for the identity, before its start:
answers are then not kept (`Response.transient`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from stubserve.inference.served_model import ServedModel
from stubserve.instances.launcher import Launcher
from stubserve.model_config.complete import without_instances

log = logging.getLogger("stubserve.repository")

_PIECE = 1 << 20


def digest_of(folder: Path, program: Path | None) -> bytes:
    """A digest of the contents of a version's folder, the same for equal files.

    Where `program` lies outside of it, as a backend's does, the Python files beside the program count too. Reads all of
    these files: for a thread. Raises OSError.
    """
    digest = sha256()
    _add(digest, folder, "*")
    if program is not None and not program.is_relative_to(folder):
        _add(digest, program.parent, "*.py")
    return digest.digest()


def _add(digest: Any, folder: Path, pattern: str) -> None:
    for path in sorted(folder.rglob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(b"%d:%b" % (path.stat().st_size, os.fsencode(path.relative_to(folder)) + b"\0"))
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)


def identity_of(config: Any, version: int, rest: bytes) -> bytes:
    """The same for equal configurations and an equal `rest`: the `digest_of` files, or the identities of members."""
    said = without_instances(config)
    return sha256(b"%d %b%b" % (version, sha256(said.SerializeToString(deterministic=True)).digest(), rest)).digest()


async def differs(model: ServedModel, launcher: Launcher, instance: str) -> bool:
    """Whether an instance has just started from other files than those that `model` has its identity of.

    Files may change during a load, and before a stub starts again; then its answers do not belong to this identity.
    """
    if not model.identity:
        return False
    files = await asyncio.to_thread(digest_of, launcher.version_dir, launcher.program.file)
    if identity_of(model.config, model.version, files) == model.identity:
        return False
    log.warning(
        "instance '%s' runs files that have changed since its model was loaded; its answers go into no shared cache "
        "until the model is loaded again",
        instance,
    )
    return True
