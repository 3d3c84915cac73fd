"""Opens a repository in the cloud: its store, and the folder on this machine where it is copied to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from stubserve.repository.cloud.address import Address, parse_address
from stubserve.repository.cloud.mirror import Mirror
from stubserve.repository.cloud.store import Store

# Where upstream's environment says that models of a provider are to be copied to
_MOUNTS = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "abfs": "TRITON_AZURE_MOUNT_DIRECTORY",
}


def open_mirror(text: str, cache: Path | None) -> Mirror:
    """Raises ServeError."""
    address = parse_address(text, os.environ)
    return Mirror(Store(address), text, cache or _default_cache(address))


def _default_cache(address: Address) -> Path:
    """Where upstream's environment says, else below the user's cache folder, or the temporary one."""
    mount = os.environ.get(_MOUNTS[address.protocol])
    if mount:
        return Path(mount)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    home = base / "stubserve" / "repositories"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(home, os.W_OK):
            return home
    except OSError:
        pass
    return Path(tempfile.gettempdir()) / f"stubserve-repositories-{os.getuid()}"
