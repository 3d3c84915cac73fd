"""Servers that may enter and read only what their user may, also where root runs the tests."""

from __future__ import annotations

import os
import shutil

import pytest

# Root may enter and read everything, unless it has put these down.
_UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"]
needs_setpriv = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root can read everything, and there is no setpriv"
)


def unprivileged() -> list[str]:
    """The beginning of such a server's command."""
    return _UNPRIVILEGED if os.geteuid() == 0 else []
